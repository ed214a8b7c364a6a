"""Schedules without a flush train by the formulas of docs/theory.md, "Weight versions", and by no others."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from math import ceil

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.local_executor import LocalExecutor, StepMetrics
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.stages.randomness import micro_batch_seed
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.reference_process import Stale, cut, lag

RATE = 0.2
SEED = 5
#: For (stage, piece) a version.
Version = Callable[[int, int], int]


pytestmark = pytest.mark.usefixtures("one_thread")


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, RATE)


def model_of(num_stages: int) -> nn.Sequential:
    """Each stage has a layer and random numbers."""
    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.2), nn.Tanh()) for _ in range(num_stages)]
    return nn.Sequential(*itertools.chain(*layers))


def batches(num: int, size: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(size, 5, generator=generator), torch.randn(size, 5, generator=generator)) for _ in range(num)]


def play_and_follow(
    schedule: str,
    replicas: Sequence[int],
    micro_batches: int,
    version: Version,
    round_size: Sequence[int],
    *,
    vertical_sync: bool = False,
    lr_scale: bool = False,
    sizes: Sequence[int] = (13, 13, 13),
) -> tuple[LocalExecutor, Stale]:
    """Train by the pipeline and by the formulas, and compare all losses and the weights after a drain."""
    num_stages = len(replicas)
    model = model_of(num_stages)
    graph = trace(model, (torch.randn(3, 5),))
    stages = even_cut(graph, num_stages)
    plan = plan_of(
        graph,
        stages,
        schedule=schedule,
        micro_batches=micro_batches,
        replicas=replicas,
        recompute=[stage % 2 == 1 for stage in range(num_stages)],
    )
    options = {"vertical_sync": True} if vertical_sync else {}
    executor = LocalExecutor(
        graph,
        functional.mse_loss,
        OptimizerMaker(sgd, lr_scale="pipedream" if lr_scale else None),
        plan,
        schedule=make_schedule(schedule, **options),
        seed=SEED,
        slots=1,
    )
    stage_of = {operator.split(":")[0]: number for number, ids in enumerate(stages) for operator in ids}
    names: list[list[str]] = [[] for _ in stages]
    for name, _ in model.named_parameters():
        names[stage_of[name.split(".")[0]]].append(name)
    rates = [RATE * r / replicas[0] if lr_scale else RATE for r in replicas]
    whence = [(step, index) for step in range(len(sizes)) for index in range(micro_batches)]
    reference = Stale(
        copy.deepcopy(model),
        functional.mse_loss,
        names,
        version,
        round_size,
        rates,
        seed_of=lambda piece: micro_batch_seed(SEED, *whence[piece]),
    )
    steps: list[StepMetrics] = []
    for size in sizes:
        x, y = batches(1, size)[0]
        steps.append(executor.step(x, y))
        for piece in zip(cut(x, micro_batches), cut(y, micro_batches), strict=True):
            reference.piece(*piece)
    reference.drain()
    found = executor.state_dict()["parameters"]
    losses = [loss for step in steps for loss in step.losses]
    is_exact = set(replicas) == {1}
    compare = torch.equal if is_exact else lambda a, b: torch.allclose(a, b, rtol=1e-6, atol=1e-7)
    assert [n for n, (a, b) in enumerate(zip(losses, reference.losses, strict=True)) if not compare(a, b)] == []
    assert [name for name in found if not compare(found[name], reference.newest[name])] == []
    return executor, reference


def stashing(replicas: Sequence[int]) -> Version:
    return lambda s, b: max(0, b // replicas[s] - ceil(sum(replicas[s + 1 :]) / replicas[s]))


REPLICAS = [(1,), (2,), (1, 1), (2, 2), (1, 1, 1), (2, 1), (1, 2), (3, 2, 1), (2, 2, 2), (1, 1, 1, 1), (2, 2, 2, 2)]


@pytest.mark.parametrize("replicas", REPLICAS)
def test_pipedream_uses_the_versions_of_weight_stashing(replicas: tuple[int, ...]) -> None:
    executor, _ = play_and_follow("pipedream", replicas, 5, stashing(replicas), replicas)
    for stage in executor.stages():
        after = sum(replicas[stage.setup.id + 1 :])
        assert stage.versions.most_versions == lag(after, replicas[stage.setup.id]) + 1, "exactly the bound"
        assert stage.versions.num_copies <= stage.versions.newest, "at most one copy an update"
        if stage.setup.id == len(replicas) - 1:
            assert stage.versions.num_copies == 0


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_vertical_sync_uses_one_version_at_all_stages(num_stages: int, replicas: int) -> None:
    def version(stage: int, piece: int) -> int:
        return max(0, piece // replicas - num_stages + 1)

    wide = [replicas] * num_stages
    executor, _ = play_and_follow("pipedream", wide, 5, version, wide, vertical_sync=True)
    assert all(stage.versions.most_versions <= num_stages for stage in executor.stages())
    assert all(stage.versions.num_copies <= stage.versions.newest for stage in executor.stages())


@pytest.mark.parametrize(
    ("replicas", "micro_batches"), [((1,), 1), ((1,), 3), ((1, 1), 2), ((1, 1, 1), 4), ((1,) * 4, 8), ((2, 2), 4)]
)
def test_double_buffering_is_one_update_late_everywhere(replicas: tuple[int, ...], micro_batches: int) -> None:
    executor, _ = play_and_follow(
        "pipedream_2bw",
        replicas,
        micro_batches,
        lambda stage, piece: max(0, piece // micro_batches - 1),
        [micro_batches] * len(replicas),
        sizes=(13, 13, 13, 13),
    )
    assert all(stage.versions.most_versions <= 2 for stage in executor.stages())
    assert all(stage.versions.num_copies <= stage.versions.newest for stage in executor.stages())


def test_learning_rates_scale_with_replicas_if_asked() -> None:
    play_and_follow("pipedream", (2, 4, 1), 5, stashing((2, 4, 1)), (2, 4, 1), lr_scale=True)


def test_uneven_mini_batches_weigh_by_samples() -> None:
    play_and_follow("pipedream", (2, 3), 4, stashing((2, 3)), (2, 3), sizes=(13, 5, 22, 9))


def test_other_formulas_are_told_apart() -> None:
    """The comparison would see a version that is off by one."""
    with pytest.raises(AssertionError):
        play_and_follow("pipedream", (1, 1, 1), 5, lambda s, b: max(0, b - (2 - s) - 1), (1, 1, 1))
    with pytest.raises(AssertionError):
        play_and_follow("pipedream", (1, 1, 1), 5, lambda s, b: 0, (1, 1, 1))


@pytest.mark.soak
@pytest.mark.parametrize("num_stages", range(1, 5))
@pytest.mark.parametrize("micro_batches", range(1, 9))
def test_pipedream_uses_the_versions_of_weight_stashing_in_every_combination(
    num_stages: int, micro_batches: int
) -> None:
    for replicas in itertools.product((1, 2, 3), repeat=num_stages):
        play_and_follow("pipedream", replicas, micro_batches, stashing(replicas), replicas)


def test_after_a_drain_the_formulas_begin_again() -> None:
    model = model_of(3)
    graph = trace(model, (torch.randn(3, 5),))
    plan = plan_of(graph, even_cut(graph, 3), schedule="pipedream", micro_batches=4)
    executor = LocalExecutor(graph, functional.mse_loss, sgd, plan)
    (first, second) = batches(2, 12)
    executor.step(*first)
    executor.drain()
    assert [stage.versions.newest for stage in executor.stages()] == [4, 4, 4]
    once = executor.to_module()
    losses = executor.step(*second).losses
    # The first piece after a drain meets the newest weights at every stage.
    torch.manual_seed(micro_batch_seed(0, 1, 0))
    assert torch.equal(losses[0], functional.mse_loss(once(second[0][:3]), second[1][:3]))


def test_copies_of_a_tied_weight_stay_equal_without_a_flush() -> None:
    layer = nn.Linear(5, 5)
    last = nn.Linear(5, 5)
    last.weight = layer.weight
    graph = trace(nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), last), (torch.randn(3, 5),))
    plan = plan_of(graph, even_cut(graph, 3), schedule="pipedream_2bw", micro_batches=4)
    assert plan.tied
    executor = LocalExecutor(graph, functional.mse_loss, sgd, plan)
    for x, y in batches(3, 12):
        executor.step(x, y)
    executor.drain()
    first, *_, final = executor.stages()
    assert torch.equal(first.versions.parameters["0.weight"], final.versions.parameters["0.weight"])
    assert not torch.equal(first.versions.parameters["0.weight"], layer.weight)


def test_vertical_sync_refuses_unequal_replicas() -> None:
    with pytest.raises(ScheduleInvalid, match="equally many replicas"):
        play_and_follow("pipedream", (1, 2), 2, lambda s, b: 0, (1, 2), vertical_sync=True)
