"""Replicas whose gradients go by an exchange train as those whose gradients are added up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.exchange import Exchange
from ropewalk.exchange.exchange_maker import make_exchange
from ropewalk.exchange.groups.thread_group import ThreadGroup
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.stages.exchange_sums import ReplicaExchange
from ropewalk.pipeline.stages.gradient_sums import Contributor
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


class Partly(nn.Module):
    """A layer that only some samples need, so that replicas may have no gradient for it."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.at = at

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.detach()[0, 0]) > self.at else x * 1.0


def model_of(*, tied: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    if tied:
        last.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Tanh(), last, nn.Linear(6, 3))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def batches(num: int, size: int = 13) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)) for _ in range(num)
    ]


def player_of(model: nn.Module, num_stages: int, replicas: Any, **options: Any) -> LocalExecutor:
    graph = trace(model, (torch.randn(4, 6),))
    plan = plan_of(graph, even_cut(graph, num_stages), micro_batches=4, replicas=replicas)
    executor = LocalExecutor(graph, options.pop("loss_fn", functional.cross_entropy), sgd, plan, **options)
    PLAYERS.append(executor)
    return executor


PLAYERS: list[LocalExecutor] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while PLAYERS:
        PLAYERS[-1].close()
        PLAYERS.pop().close()


def assert_trained_alike(found: LocalExecutor, wanted: LocalExecutor, *, tolerance: float = 1e-5) -> None:
    mine, theirs = found.state_dict(), wanted.state_dict()
    for kind in ("parameters", "buffers"):
        for name, tensor in theirs[kind].items():
            assert torch.allclose(mine[kind][name], tensor, rtol=tolerance, atol=1e-7), name


@pytest.mark.parametrize(
    ("schedule", "replicas"),
    [("one_f_one_b", (3, 1)), ("one_f_one_b", 2), ("zb_h1", 2), ("pipedream", (1, 2)), ("pipedream_2bw", 2)],
)
def test_all_reduce_trains_as_sums_do(schedule: str, replicas: Any) -> None:
    model = model_of(tied=schedule == "zb_h1")
    plain = player_of(model, 2, replicas, schedule=schedule)
    executor = player_of(model, 2, replicas, schedule=schedule, exchange=AllReduce)
    for size in (13, 11):
        for x, y in batches(2, size):
            executor.step(x, y)
            plain.step(x, y)
    assert_trained_alike(executor, plain)


@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_a_replica_without_samples_or_without_a_gradient_counts_nothing(loss: Any) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Partly(0.3), nn.Linear(6, 3))

    def loss_fn(outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels, reduction=loss)

    made = [player_of(model, 1, 3, loss_fn=Loss(loss_fn, loss), exchange=kind) for kind in (AllReduce, None)]
    for size in (9, 2, 1, 7):
        for x, y in batches(2, size):
            for executor in made:
                executor.step(x, y)
    assert_trained_alike(*made)


def test_one_stage_with_replicas_is_data_parallelism() -> None:
    """Equal to one process that sees the whole batch, within rounding."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    for num in (2, 4):
        executor = player_of(model, 1, num, exchange=AllReduce)
        plain = copy.deepcopy(model)
        optimizer = sgd(list(plain.parameters()))
        for x, y in batches(5, 16):
            executor.step(x, y)
            optimizer.zero_grad()
            functional.cross_entropy(plain(x), y).backward()
            optimizer.step()
        state = executor.state_dict()["parameters"]
        for name, parameter in plain.named_parameters():
            assert torch.allclose(state[name], parameter, rtol=1e-6, atol=1e-7), name


def test_gd_sec_keeps_replicas_equal_learns_and_sends_less() -> None:
    def make() -> Exchange:
        return make_exchange(GDSEC(c=20.0, beta=0.1))

    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
    executor = player_of(model, 2, 2, exchange=make, options=TrainingOptions(clip_norm=10.0))
    (x, y) = batches(1, 32)[0]
    losses = [float(executor.step(x, y).loss) for _ in range(40)]
    assert losses[-1] < 0.7 * losses[0]
    for stage in (0, 1):
        ours = [one.versions.parameters for one in executor.stages() if one.setup.id == stage]
        assert all(torch.equal(ours[0][name], ours[1][name]) for name in ours[0])
        report = executor.exchanges[Contributor(stage, 0)].exchange.report()
        assert report.steps == 40 and report.sent_bytes < report.dense_bytes


def test_what_an_exchange_raises_arrives_as_it_is() -> None:
    class Refuses(AllReduce):
        def finish(self) -> Any:
            raise ExchangeInvalid("not today")

    executor = player_of(model_of(), 1, 2, exchange=Refuses)
    with pytest.raises(ExchangeInvalid, match="not today"):
        executor.step(*batches(1)[0])


def test_a_group_that_is_not_of_the_replicas_is_refused() -> None:
    executor = player_of(model_of(), 2, (2, 1))
    make: Callable[[], Exchange] = AllReduce
    first, second, alone = executor.stages()
    (group,) = ThreadGroup.make(1)
    with pytest.raises(ExchangeInvalid, match="replica 1 of 2, was given rank 0 of a group of 1"):
        ReplicaExchange.bind(make(), second, executor.plan, group)
    assert ReplicaExchange.bind(make(), alone, executor.plan, group) is None
    assert first.setup.replica == 0
