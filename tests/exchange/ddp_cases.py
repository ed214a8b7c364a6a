"""What the ranks of `test_ddp_hook` do; each function runs on all three of them and returns what the test looks at."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.ddp_hook import attach
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.torch_group import TorchGroup

#: Small enough that DDP makes several buckets of the small model, others after the first iteration.
CAP_MB = 0.004
BATCH, FEATURES = 4, 24


def sparse() -> AllGather:
    """GD-SEC where it leaves much out, although the problem is small."""
    return AllGather(GDSEC(c=2.0, beta=0.1), mode="sparse")


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*[part for _ in range(5) for part in (nn.Linear(FEATURES, FEATURES), nn.Tanh())])


def batches(num: int, *, scale: float = 1.0) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(num):
        yield scale * torch.randn(BATCH, FEATURES, generator=generator)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - 1).square().mean()


@contextlib.contextmanager
def ddp(exchange: Any = None, model: nn.Module | None = None, **options: Any) -> Generator[tuple[Any, Any]]:
    model = DistributedDataParallel(model or network(), bucket_cap_mb=CAP_MB, **options)
    attached = None if exchange is None else attach(model, exchange)
    yield model, attached
    if attached is not None:
        attached.detach()


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def trained(exchange: Any = None, steps: int = 5, **options: Any) -> list[Tensor]:
    with ddp(exchange, **options) as (model, _):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x in batches(steps):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
        return weights(model)


def dense_and_plain(rank: int) -> dict[str, Any]:
    """Weights with the hook and without, in every way in which DDP keeps gradients."""
    ways: dict[str, Any] = {
        "plain": {},
        "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
        "static_graph": {"static_graph": True},
        "both": {"gradient_as_bucket_view": True, "static_graph": True},
    }
    return {way: (trained(AllReduce(), **options), trained(None, **options)) for way, options in ways.items()}


def rebuilt_buckets(rank: int) -> Any:
    """GD-SEC by the hook, while DDP changes its buckets, and by hand, with one bucket for all."""
    indices: list[list[tuple[str, ...]]] = []
    with ddp(sparse()) as (model, attached):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches(6):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
            indices.append([layout.names for layout in attached.exchange.layouts])
        by_hook, state = weights(model), attached.state_dict()["state"]
    module, exchange, group = network(), sparse(), TorchGroup()
    exchange.bind(module.named_parameters(), group)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step, x in enumerate(batches(6)):
        optimizer.zero_grad()
        loss_of(module, x).backward()
        exchange.begin(StepRecord(step))
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            exchange.ready(name, parameter.grad)
        exchange.finish()
        optimizer.step()
    by_hand, state_by_hand = weights(module), exchange.state_dict()["state"]
    exchange.close()
    group.close()
    return indices, (by_hook, by_hand), (state, state_by_hand)


def accumulated(rank: int) -> Any:
    """Gradients of two batches before they are exchanged, with the hook and without."""
    found = []
    for exchange in (None, AllReduce()):
        with ddp(exchange) as (model, attached):
            for first, second in zip(batches(3), batches(3, scale=2.0), strict=True):
                model.zero_grad()
                with model.no_sync():
                    loss_of(model, first).backward()
                loss_of(model, second).backward()
            found.append(gradients(model))
            steps = attached.report().steps if attached else 0
    return found[0], found[1], steps


class Branched(nn.Module):
    """Each rank leaves another branch out, and all leave one out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = [branch for at, branch in enumerate(self.branches) if at not in (dist.get_rank(), 3)]
        return chosen[1](torch.tanh(chosen[0](x)))


def unused(rank: int) -> Any:
    """Gradients of a model parts of which are not used, with the hook and without."""
    found = []
    for exchange in (None, AllReduce(), sparse()):
        with ddp(exchange, Branched(), find_unused_parameters=True) as (model, _):
            for x in batches(3):
                model.zero_grad()
                loss_of(model, x).backward()
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    return found


def poisoned(model: Any, x: Tensor, rank: int = 1) -> None:
    """A backward with NaN in one parameter's gradient on one rank."""
    hook = model.module[2].weight.register_hook(
        lambda grad: torch.where(grad > 0, torch.nan, grad) if dist.get_rank() == rank else grad
    )
    try:
        model.zero_grad()
        loss_of(model, x).backward()
    finally:
        hook.remove()


def not_finite(rank: int) -> Any:
    """A step with NaN on rank 1, after a good one, by policy: gradients, what was raised, whether state moved."""
    found: dict[tuple[str, str], Any] = {}
    for nan in ("pass", "skip", "zero", "raise"):
        for name, exchange in (("sparse", AllGather(GDSEC(c=2.0, beta=0.1), nan=nan)), ("dense", AllReduce(nan=nan))):
            raised = ""
            with ddp(exchange) as (model, attached):
                good, bad, later = batches(3)
                loss_of(model, good).backward()
                before = attached.state_dict()["state"]
                try:
                    poisoned(model, bad)
                except Exception as caught:
                    raised = f"{type(caught).__name__}: {caught}"
                    error = type(attached.error).__name__
                    after = attached.state_dict()["state"]
                    model.zero_grad()
                    loss_of(model, later).backward()
                    found[name, nan] = raised, error, (before, after), gradients(model)
                    continue
                held = gradients(model)
                after = attached.state_dict()["state"]
                skipped, notes = attached.skipped, attached.report().notes
                model.zero_grad()
                loss_of(model, later).backward()
                found[name, nan] = held, skipped, notes, (before, after), gradients(model)
    return found


def scaled(rank: int) -> Any:
    """GD-SEC with a GradScaler and without; then a step with infinity on one rank."""
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = DistributedDataParallel(network(), bucket_cap_mb=CAP_MB)
        attached = attach(model, sparse(), grad_scaler=scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches(4):
            optimizer.zero_grad()
            loss = loss_of(model, x)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        state = attached.state_dict()["state"]
        ends.append((weights(model), state))
        if scaler is not None:
            (x,) = batches(1)
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x) * (float("inf") if dist.get_rank() == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            ends.append((weights(model), attached.state_dict()["state"]))
            ends.append(scaler.get_scale())
        attached.detach()
    return ends


def joined(rank: int) -> Any:
    """Rank r has 2 + r batches; with the hook and without."""
    ends = []
    for exchange in (None, AllReduce(), sparse()):
        with ddp(exchange) as (model, attached):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with model.join():
                for x in batches(2 + dist.get_rank()):
                    optimizer.zero_grad()
                    loss_of(model, x).backward()
                    optimizer.step()
            ends.append(weights(model))
            steps = attached.report().steps if attached else 0
    return ends, steps


def saved_and_loaded(rank: int) -> Any:
    """Six steps of GD-SEC at once, and three and three with a new model and exchange between."""
    at_once = trained(sparse(), 6)
    x = list(batches(6))
    model, optimizer, kept = network(), None, {}
    for part in (x[:3], x[3:]):
        with ddp(sparse(), model) as (replica, attached):
            old = optimizer
            optimizer = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
            if old is not None:
                optimizer.load_state_dict(old.state_dict())
                attached.load_state_dict(kept)
            for each in part:
                optimizer.zero_grad()
                loss_of(replica, each).backward()
                optimizer.step()
            kept = attached.state_dict()
            step = kept["step"]
    return at_once, weights(model), step


def detached(rank: int) -> Any:
    """A model whose exchange was taken off, beside one that never had one."""
    ends = []
    for exchange in (None, "half"):
        model = DistributedDataParallel(network(), bucket_cap_mb=CAP_MB)
        if exchange:
            attach(model, exchange).detach()
        for x in batches(2):
            model.zero_grad()
            loss_of(model, x).backward()
        ends.append(gradients(model))
        if exchange:
            again = attach(model, exchange)
            for x in batches(2):
                model.zero_grad()
                loss_of(model, x).backward()
            ends.append(gradients(model))
            try:
                attach(model, "none")
            except ValueError as error:
                ends.append(str(error))
            again.detach()
    return ends


def sparse_embedding(rank: int) -> tuple[str, bool]:
    """Why a model with sparse gradients is refused, and whether one whose sparse layer is frozen is not."""
    parts = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1)
    with ddp(model=nn.Sequential(*parts)) as (model, _):
        try:
            attach(model, "half")
            refused = ""
        except ValueError as error:
            refused = str(error)
    parts[0].requires_grad_(False)
    with ddp("half", nn.Sequential(*parts)) as (model, attached):
        model(torch.tensor([rank])).sum().backward()
        return refused, attached.attached


#: By name, what makes one from parameters.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.005),
}


def digits(rank: int, name: str) -> Any:
    """Accuracy on digits by exchange, with an optimizer, and what GD-SEC sent of a dense gradient's bytes."""
    from sklearn.datasets import load_digits  # not where tests are collected: 0.8 s

    data: Any = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = shuffled[:1400], shuffled[1400:]
    own = train[dist.get_rank() :: dist.get_world_size()]
    found = {}
    for exchange in (AllReduce(), AllGather(GDSEC(c=10.0, beta=0.01), mode="sparse")):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)))
        attached = attach(model, exchange)
        optimizer = OPTIMIZERS[name](model.parameters())
        generator = torch.Generator().manual_seed(dist.get_rank())
        accuracies: list[float] = []
        for step in range(1, 201):
            rows = own[torch.randint(len(own), (32,), generator=generator)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            # Several, because one test image is a quarter of a percent.
            if step > 120 and step % 10 == 0:
                with torch.no_grad():
                    right = model.module(images[test]).argmax(1) == labels[test]
                accuracies.append(float(right.float().mean()))
        report = attached.report()
        found[type(exchange).__name__] = sum(accuracies) / len(accuracies), report.sent_bytes / report.dense_bytes
        attached.detach()
    return found


def killed(rank: int, folder: Path) -> None:
    """Rank 2 dies between two steps; the others are in the backward of the next."""
    model = DistributedDataParallel(network(), bucket_cap_mb=CAP_MB)
    attached = attach(model, sparse(), timeout_s=20)
    # DDP itself talks in the first iterations, about its buckets.
    *first, last = batches(4)
    for x in first:
        loss_of(model, x).backward()
    if rank == 2:
        os._exit(1)
    try:
        loss_of(model, last).backward()
    except Exception as error:
        (folder / f"raised-{rank}").write_text(f"{type(attached.error).__name__}\n{error}")
