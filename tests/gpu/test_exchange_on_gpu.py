"""Gradients on a GPU through exchanges: compressors, DDP's hook over gloo, and the calls that are made of NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.compressors import COMPRESSORS, Compressor, make_compressor
from ropewalk.exchange.ddp_hook import attach
from ropewalk.exchange.groups.torch_group import TorchGroup, _make_backend
from ropewalk.testing.compressor_conformance import CompressorConformance
from tests.exchange import ddp_cases
from tests.exchange.compressors.test_conformance import OPTIONS
from tests.exchange.torch_members import TorchLeader, TorchMembers

torch_dist: Any = dist


@pytest.mark.parametrize("name", COMPRESSORS)
class TestCompressors(CompressorConformance):
    device = "cuda:0"

    @pytest.fixture(autouse=True)
    def _chosen(self, name: str) -> None:
        self.name = name

    def make_compressor(self) -> Compressor:
        return make_compressor(self.name, **OPTIONS.get(self.name, {}))


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchMembers]:
    path = tmp_path_factory.mktemp("ranks")
    with TorchLeader(ddp_cases.__name__) as leader, TorchMembers(2, path, leader) as members:
        yield members


def trained(device: str, exchange: Any, steps: int = 5) -> list[torch.Tensor]:
    """In float64, so that no threshold falls between the sums of two devices."""
    model = DistributedDataParallel(ddp_cases.network().to(device, torch.float64), bucket_cap_mb=ddp_cases.CAP_MB)
    attached = None if exchange is None else attach(model, exchange)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x in ddp_cases.batches(steps):
        optimizer.zero_grad()
        ddp_cases.loss_of(model, x.to(device, torch.float64)).backward()
        optimizer.step()
    found = [parameter.detach().cpu() for parameter in model.parameters()]
    if attached is not None:
        attached.detach()
    return found


def dense_and_plain(rank: int) -> tuple[Any, Any]:
    return trained("cuda", AllReduce()), trained("cuda", None)


def sparse_there_and_here(rank: int) -> tuple[Any, Any]:
    return trained("cuda", ddp_cases.sparse()), trained("cpu", ddp_cases.sparse())


def test_whole_gradients_through_the_hook_have_the_bits_that_ddp_computes(members: TorchMembers) -> None:
    for hooked, plain in members.run(dense_and_plain, timeout_s=120):
        assert all(torch.equal(one, other) for one, other in zip(hooked, plain, strict=True))


def test_gd_sec_learns_on_a_gpu_what_it_learns_on_the_cpu(members: TorchMembers) -> None:
    for there, here in members.run(sparse_there_and_here, timeout_s=120):
        torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-9)


def through_nccl(rank: int) -> dict[str, Any]:
    """A group of one, since NCCL takes no two members on one GPU: every call that a group makes of its backend."""
    group = TorchGroup()
    world: Any = dist.group.WORLD
    store = torch_dist.PrefixStore("nccl", world.get_group_store().clone())
    group._backend, group._device = _make_backend("nccl", store, 0, 1, timedelta(seconds=60)), "cuda"
    size, group.size = group.size, 2  # or it would say at once what it knows
    try:
        buffer = torch.arange(5.0, device="cuda")
        group.all_reduce(buffer, "sum").wait()
        told = torch.full((5,), 3.0, device="cuda")
        group._begin(
            "broadcast", "told", lambda: group._backend.broadcast([told], torch_dist.BroadcastOptions())
        ).wait()
        out = torch.empty(5, device="cuda")
        group._gather(out, buffer, "all")
        return {"sum": buffer.cpu(), "told": told.cpu(), "all": out.cpu()}
    finally:
        group.size = size
        group.close()


def test_a_group_calls_nccl_as_it_wants_to_be_called(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rank")
    with TorchLeader(ddp_cases.__name__) as leader, TorchMembers(1, path, leader) as one:
        (found,) = one.run(through_nccl, timeout_s=120)
    assert found["sum"].tolist() == found["all"].tolist() == [0, 1, 2, 3, 4]
    assert found["told"].tolist() == [3] * 5
