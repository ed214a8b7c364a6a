"""`DistributedOptimizer` between processes of torch.distributed (gloo): parity with DDP, process sets, join, stalls."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, ExchangeStalled
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.broadcasting import broadcast_optimizer_state, broadcast_parameters
from ropewalk.exchange.ddp_hook import attach
from ropewalk.exchange.distributed_optimizer import DistributedOptimizer
from ropewalk.exchange.groups import torch_group
from ropewalk.exchange.groups.torch_group import TorchGroup
from ropewalk.exchange.timeline import read_timeline
from tests.exchange.torch_members import TorchMembers

SIZE = 3


@pytest.fixture(scope="module")
def members(tmp_path_factory, torch_leader) -> Iterator[TorchMembers]:
    with TorchMembers(SIZE, tmp_path_factory.mktemp("members"), torch_leader) as members:
        yield members


def _make_beside_a_slow_one(rank: int) -> int:
    """How many have connected when a group is made here, of one that is slow to."""
    assert dist.group.WORLD
    store, make = dist.group.WORLD.get_group_store(), torch_group._make_backend

    def make_slowly(*args):
        backend = make(*args)
        time.sleep(0.5)
        store.add("slow ones that have connected", 1)
        return backend

    torch_group._make_backend = make_slowly if rank == 1 else make
    try:
        TorchGroup().close()
    finally:
        torch_group._make_backend = make
    return store.add("slow ones that have connected", 0)


def test_a_group_is_made_when_all_have_connected(members: TorchMembers) -> None:
    """A member closed its group at once, while others still connected: that failed there, and the rest hung."""
    assert members.run(_make_beside_a_slow_one) == [1, 1, 1]


def _add_up_what_gloo_cannot(rank: int) -> list[str]:
    group, said = TorchGroup(), []
    for tensor in (torch.zeros(4, dtype=torch.uint16), torch.zeros(4, device="meta")):
        with pytest.raises(ExchangeInvalid) as caught:
            group.all_reduce(tensor, "bucket 0").wait()
        said.append(str(caught.value))
    total = torch.ones(2)
    group.all_reduce(total, "bucket 1").wait()
    group.close()
    return [*said, str(total.tolist())]


def test_an_argument_that_the_backend_refuses_is_no_death(members: TorchMembers) -> None:
    # Every RuntimeError of torch was told as the loss of a member.
    for dtype, device, total in members.run(_add_up_what_gloo_cannot):
        assert "all_reduce('bucket 0') of epoch 0 cannot be done; torch says: Invalid scalar type" in dtype
        assert "unsupported device type meta" in device
        assert total == "[3.0, 3.0]", "the group is as good as before"


def _model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))


def _batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + rank))


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _same(tensors) -> bool:
    return all(torch.equal(tensors[0], other) for other in tensors[1:])


def _train(model, optimizer, rank: int, steps) -> torch.Tensor:
    for step in steps:
        optimizer.zero_grad()
        model(_batch(rank, step)).square().mean().backward()
        optimizer.step()
    return _weights(model)


def _beside_ddp(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    model = DistributedDataParallel(_model(0))
    theirs = _train(model, SGD(model.parameters(), lr=0.1, momentum=0.9), rank, range(5))
    model, group = _model(rank), TorchGroup()
    optimizer = DistributedOptimizer(
        SGD(model.parameters(), lr=0.1, momentum=0.9), AllReduce(), model.named_parameters(), group
    )
    broadcast_parameters(model, group)
    broadcast_optimizer_state(optimizer, group)
    ours = _train(model, optimizer, rank, range(5))
    optimizer.close()
    group.close()
    return theirs, ours


def test_weights_are_those_of_ddp(members) -> None:
    ends = members.run(_beside_ddp)
    assert _same([ours for _, ours in ends])
    torch.testing.assert_close(ends[0][1], ends[0][0], rtol=1e-6, atol=1e-7)


def _joining(rank: int) -> tuple[int, torch.Tensor, int]:
    model, group = _model(0), TorchGroup()
    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.05), "top_k", model.named_parameters(), group)
    _train(model, optimizer, rank, range(2 + 2 * rank))
    last = optimizer.join()
    steps = optimizer.report().steps
    optimizer.close()
    group.close()
    return last, _weights(model), steps


def test_members_with_fewer_batches_join_and_weights_stay_the_same(members) -> None:
    ends = members.run(_joining)
    assert [last for last, _, _ in ends] == [2, 2, 2]
    assert _same([weights for _, weights, _ in ends])
    assert {steps for _, _, steps in ends} == {7}, "six steps, and one in which nobody has a batch"


def _in_sets(rank: int) -> torch.Tensor:
    model = _model(0)
    ranks = [0, 1] if rank < 2 else [2]
    group = TorchGroup(ranks=ranks)
    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.1), "none", model.named_parameters(), group)
    weights = _train(model, optimizer, rank, range(2))
    optimizer.close()
    group.close()
    return weights


def test_process_sets_average_among_themselves(members) -> None:
    first, second, alone = members.run(_in_sets)
    assert torch.equal(first, second) and not torch.equal(first, alone)
    model = _model(0)
    assert torch.allclose(alone, _train(model, SGD(model.parameters(), lr=0.1), 2, range(2)))


def _traced(rank: int, path: str) -> str:
    model, group = _model(0), TorchGroup()
    exchange = AllReduce(timeline=path, bucket_bytes=4000, first_bucket_bytes=1000)
    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.1), exchange, model.named_parameters(), group)
    _train(model, optimizer, rank, range(3))
    optimizer.close()
    group.close()
    return path


def test_each_rank_writes_its_trace(members, tmp_path) -> None:
    members.run(_traced, str(tmp_path / "trace.json"))
    for rank in range(SIZE):
        path = tmp_path / f"trace.rank{rank}.json"
        assert len(json.loads(path.read_bytes())) == len(read_timeline(path))
        names = [event["name"] for event in read_timeline(path)]
        assert names.count("transfer") >= 6 and {"step 0", "step 1", "step 2"} <= set(names)


def _other_models(rank: int) -> str:
    group = TorchGroup()
    model = nn.Linear(4, 5 if rank == 1 else 4)
    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.1), "none", model.named_parameters(), group)
    with pytest.raises(ExchangeInvalid) as raised:
        model(torch.ones(2, 4)).sum().backward()
    optimizer.close()
    group.close()
    return str(raised.value)


def test_members_with_other_models_are_told_which_parameters_differ(members) -> None:
    for said in members.run(_other_models):
        assert "rank 1 has weight as float32 (5, 4) and not float32 (4, 4)" in said


def _aborted_while_it_begins(rank: int, timeout_s: float) -> None:
    """Rank 0 aborts a call of its own between the look at earlier aborts and the call; the others stay away."""
    group = TorchGroup(timeout_s=timeout_s)
    if rank > 0:
        dist.barrier()
        return
    look = group.refuse_aborted

    def look_and_abort(call: str) -> None:
        look(call)
        group.abort()

    group.refuse_aborted = look_and_abort
    with pytest.raises(ExchangeAborted):
        group.all_reduce(torch.ones(3), "late").wait()
    dist.barrier()


# Stalls come last: torch's gloo groups are of no use after one, and each case has a group of its own.


def _one_never_arrives(rank: int, folder: str, late: str) -> tuple[str, tuple[int, ...], tuple[tuple[int, str], ...]]:
    """Rank 1 stays away in step 2 until all others have given up: before its backward, or in the middle of it."""
    model, group = _model(0), TorchGroup(timeout_s=4.0)  # all of them are there within it, on a busy machine too
    exchange = AllReduce(stall_warning_s=0.5)
    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.1), exchange, model.named_parameters(), group)
    dist.barrier()
    _train(model, optimizer, rank, range(2))
    dist.barrier()

    def wait_for_the_others(*_) -> None:
        while len(list(Path(folder).iterdir())) < SIZE - 1:
            time.sleep(0.05)

    if rank == 1:
        if late == "in backward":
            middle = dict(model.named_parameters())["2.weight"]
            middle.register_post_accumulate_grad_hook(wait_for_the_others)
            with pytest.raises(Exception):  # noqa: B017 - the others are gone when it comes
                _train(model, optimizer, rank, [2])
        else:
            wait_for_the_others()
        optimizer.close()
        return "", (), ()
    began = time.monotonic()
    with pytest.raises(ExchangeStalled) as raised:
        _train(model, optimizer, rank, [2])
    waited_s = time.monotonic() - began
    (Path(folder) / str(rank)).touch()
    optimizer.close()
    assert waited_s > 3
    return str(raised.value), raised.value.ranks, raised.value.tensors


@pytest.mark.parametrize("late", [pytest.param("before", marks=pytest.mark.soak), "in backward"])
def test_a_stall_names_the_rank_and_its_tensors_within_the_timeout(members, tmp_path, late) -> None:
    for rank, (text, ranks, tensors) in enumerate(members.run(_one_never_arrives, str(tmp_path), late)):
        if rank == 1:
            continue
        assert ranks == (1,), text
        if late == "before":
            assert "rank 1 has not begun step 2, its last was 1" in text
        else:
            assert "gradients not ready" in text
            missing = {name for _, name in tensors}
            assert {"0.weight", "0.bias"} <= missing <= {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_an_abort_wakes_a_call_that_was_just_begun(members) -> None:
    members.run(_aborted_while_it_begins, 3600.0)  # a call that is not woken waits for an hour


def _host_of_the_store_freezes(rank: int, port: int, folder: str) -> tuple[str, str]:
    """Rank 0, which hosts a TCPStore, stops; rank 1 wants its gradients; rank 2 looks on, and lets rank 0 go on."""
    if rank == 2:
        pid = Path(folder) / "pid"
        while not (Path(folder) / "over").exists():
            time.sleep(0.02)
        os.kill(int(pid.read_text()), signal.SIGCONT)
        return "", ""
    dist.destroy_process_group()
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        "127.0.0.1", port, 2, rank == 0, timedelta(seconds=30)
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    model = DistributedDataParallel(_model(0))
    attached = attach(model, "none", timeout_s=4.0)
    for step in range(3):  # DDP itself talks in the first two
        model(_batch(rank, step)).sum().backward()
    if rank == 0:
        (Path(folder) / "pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        return "", ""
    with pytest.raises(RuntimeError):
        model(_batch(rank, 3)).sum().backward()
    (Path(folder) / "over").touch()
    return type(attached.error).__name__, str(attached.error)


def test_a_backward_ends_when_the_rank_that_hosts_the_store_is_frozen(members, tmp_path) -> None:
    # The last test, because the members of this world leave it.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kind, text = members.run(_host_of_the_store_freezes, port, str(tmp_path))[1]
    assert kind == "ExchangeStalled" and "cannot be read" in text
