"""A played pipeline equals one process that runs the same micro-batches (docs/theory.md, "Parity")."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.schedules import SCHEDULES
from ropewalk.pipeline.stages.randomness import micro_batch_seed
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.reference_process import MicroBatched, trained_state

#: How each schedule with a flush is laid out on devices: stages for each worker, and in which order they go back.
FLUSHING = [name for name, kind in SCHEDULES.items() if kind.flushes]
SEED = 7


pytestmark = pytest.mark.usefixtures("one_thread")


class Twice(nn.Module):
    """A layer whose weight is read twice, always in one stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.same = nn.Linear(6, 6)
        self.same.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.same(self.layer(x).relu())


def hard_model(*, tied: bool = False) -> nn.Sequential:
    """Dropout, batch normalisation, and a weight that two layers share; `tied`: in different stages."""
    torch.manual_seed(1)
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    if tied:
        last.weight = first.weight
    return nn.Sequential(
        first,
        nn.Dropout(0.3),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        Twice(),
        nn.Dropout(0.2),
        nn.BatchNorm1d(6, momentum=None),
        nn.Tanh(),
        last,
        nn.ReLU(),
        nn.Linear(6, 3),
    )


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 1e-2)


OPTIMIZERS = {"sgd": sgd, "adam": adam}


def layout(schedule: str, num_workers: int) -> list[int]:
    """For each stage the worker it runs on."""
    if schedule == "interleaved":
        return [*range(num_workers), *range(num_workers)]
    if schedule == "zb_v":
        return [*range(num_workers), *reversed(range(num_workers))]
    return list(range(num_workers))


def batches(num: int, size: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)) for _ in range(num)
    ]


def assert_equal(found: Any, expected: Any, *, tolerance: float | None, path: str = "") -> None:
    """All tensors equal: to the bit, or with errors of at most `tolerance` times the largest number among them."""
    pairs = dict(_pairs(found, expected, path))
    if tolerance is None:
        assert [name for name, (mine, theirs) in pairs.items() if not torch.equal(mine, theirs)] == []
        return
    largest = max((float(theirs.abs().max()) for _, theirs in pairs.values()), default=0.0)
    errors = {name: float((mine - theirs).abs().max()) / largest for name, (mine, theirs) in pairs.items()}
    assert {name: error for name, error in errors.items() if error > tolerance} == {}


def _pairs(found: Any, expected: Any, path: str) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    if isinstance(expected, dict):
        assert set(found) == set(expected), path
        for key in expected:
            yield from _pairs(found[key], expected[key], f"{path}.{key}")
    elif expected is None:
        assert found is None, path
    else:
        yield path, (torch.as_tensor(found), torch.as_tensor(expected))


def compare(
    schedule: str,
    num_workers: int,
    replicas: int | Sequence[int],
    micro_batches: int,
    optimizer: str,
    *,
    num_steps: int = 2,
    size: int = 49,
    model: nn.Sequential | None = None,
    stages: Sequence[Sequence[str]] | None = None,
) -> None:
    model = hard_model() if model is None else model
    graph = trace(model, (torch.randn(4, 6),))
    devices = layout(schedule, num_workers)
    plan = plan_of(
        graph,
        even_cut(graph, len(devices)) if stages is None else stages,
        schedule=schedule,
        micro_batches=micro_batches,
        replicas=replicas,
        recompute=[stage % 2 == 0 for stage in range(len(devices))],
        devices=devices,
    )
    executor = LocalExecutor(graph, functional.cross_entropy, OPTIMIZERS[optimizer], plan, seed=SEED, slots=1)
    reference = MicroBatched(
        copy.deepcopy(model),
        functional.cross_entropy,
        OPTIMIZERS[optimizer],
        micro_batches,
        seed_of=lambda step, index: micro_batch_seed(SEED, step, index),
        backwards=schedule == "gpipe",
    )
    is_exact = replicas == 1 and not plan.tied and not executor.schedule.splits_backward
    tolerance = None if is_exact else 1e-6
    for x, y in batches(num_steps, size):
        expected = reference.step(x, y)
        metrics = executor.step(x, y)
        assert_equal(dict(enumerate(metrics.losses)), dict(enumerate(expected)), tolerance=tolerance)
    found, wanted = executor.state_dict(), trained_state(reference)
    for kind in wanted:
        assert_equal(found[kind], wanted[kind], tolerance=tolerance, path=kind)
    assert not executor.links.waiting
    assert all(not stage.outgoing and not stage.in_flight for stage in executor.stages())


def is_in_range(schedule: str, num_workers: int, replicas: int, micro_batches: int) -> bool:
    """Ranges of docs/theory.md, "Schedules and their ranges", for each replica."""
    if schedule == "interleaved":
        return micro_batches % (num_workers * replicas) == 0
    if schedule == "zb_h2":
        return micro_batches >= (2 * num_workers - 1) * replicas
    return schedule != "zb_v" or micro_batches >= 2 * num_workers * replicas


SWEEP = [
    case
    for case in itertools.product(FLUSHING, range(1, 5), (1, 2), range(1, 9), OPTIMIZERS)
    if is_in_range(*case[:4])
    # Where sums are added in another order, Adam makes much of the rounding of small gradients.
    and (case[4] == "sgd" or (case[2] == 1 and not SCHEDULES[case[0]].splits_backward))
]


def by_pairs(cases: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Fewer of the cases, among which any two values that are in one of them still are in one."""

    pairs = {case: set(itertools.combinations(enumerate(case), 2)) for case in cases}
    left = set[Any]().union(*pairs.values())
    chosen: list[tuple[Any, ...]] = []
    while left:
        chosen.append(max(cases, key=lambda case: len(pairs[case] & left)))
        left -= pairs[chosen[-1]]
    return chosen


def check_all(cases: Sequence[tuple[Any, ...]], num_steps: int) -> None:
    for schedule, num_workers, replicas, micro_batches, optimizer in cases:
        compare(schedule, num_workers, replicas, micro_batches, optimizer, num_steps=num_steps)


#: Chosen among all schedules; among those of one schedule for itself, they were three times as many.
PAIRS = by_pairs(SWEEP)


@pytest.mark.parametrize("schedule", sorted({schedule for schedule, *_ in SWEEP}))
def test_pipeline_equals_one_process_in_combinations_of_any_two(schedule: str) -> None:
    cases = [case for case in PAIRS if case[0] == schedule]
    for place in range(1, 5):
        assert {case[place] for case in cases} == {case[place] for case in SWEEP if case[0] == schedule}
    check_all(cases, 2)


@pytest.mark.soak
@pytest.mark.parametrize("schedule", sorted({schedule for schedule, *_ in SWEEP}))
def test_pipeline_equals_one_process_in_every_combination(schedule: str) -> None:
    check_all([case for case in SWEEP if case[0] == schedule], 3)


@pytest.mark.parametrize("schedule", FLUSHING)
def test_weights_tied_across_stages_stay_equal_and_equal_one_process(schedule: str) -> None:
    compare(schedule, 2, 1, 4, "sgd", model=hard_model(tied=True))


@pytest.mark.parametrize("replicas", [(3, 1, 2), (1, 2, 4)])
def test_replicas_of_unequal_width_equal_one_process(replicas: tuple[int, ...]) -> None:
    for schedule in ("gpipe", "one_f_one_b"):
        compare(schedule, 3, replicas, 5, "sgd", model=hard_model(tied=True))


@pytest.mark.parametrize(
    ("optimizer", "dtype", "tolerance"), [("sgd", torch.float32, 1e-6), ("adam", torch.float64, 1e-10)]
)
@pytest.mark.parametrize("schedule", FLUSHING)
def test_uneven_micro_batches_equal_the_full_batch(
    schedule: str, optimizer: str, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).to(
        dtype
    )
    graph = trace(model, (torch.randn(4, 6, dtype=dtype),))
    devices = layout(schedule, 2)
    plan = plan_of(graph, even_cut(graph, len(devices)), schedule=schedule, micro_batches=4, devices=devices)
    executor = LocalExecutor(graph, functional.cross_entropy, OPTIMIZERS[optimizer], plan)
    plain = copy.deepcopy(model)
    stepper = OPTIMIZERS[optimizer](list(plain.parameters()))
    for x, y in batches(4, 18):
        stepper.zero_grad()
        loss = functional.cross_entropy(plain(x.to(dtype)), y)
        loss.backward()
        stepper.step()
        metrics = executor.step(x.to(dtype), y)
        assert_equal({"loss": metrics.loss}, {"loss": loss.detach()}, tolerance=tolerance)
    expected = {name: parameter.detach() for name, parameter in plain.named_parameters()}
    assert_equal(executor.state_dict()["parameters"], expected, tolerance=tolerance)
