"""Clipping by the norm of all gradients, and updates whose gradients are not finite."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.errors import GradientNotFinite, ScheduleInvalid
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.stages.gradient_norm import Norms, judge
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.reference_process import MicroBatched, trained_state

pytestmark = pytest.mark.usefixtures("one_thread")

CLIP = 0.05
LAYOUTS = {"gpipe": [0, 1, 2], "one_f_one_b": [0, 1, 2], "interleaved": [0, 1, 0, 1], "zb_h1": [0, 1, 2]}


def model_of(*, tied: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    if tied:
        last.weight = first.weight
    unused = nn.Linear(6, 6)
    unused.weight.requires_grad_(False)
    return nn.Sequential(first, nn.Tanh(), nn.LayerNorm(6), unused, nn.Tanh(), last, nn.ReLU(), nn.Linear(6, 3))


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 1e-2)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.5, momentum=0.9)


def batches(num: int, size: int = 13) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)) for _ in range(num)
    ]


def player_of(model: nn.Module, schedule: Any = "one_f_one_b", optimizer: Any = adam, **options: Any) -> LocalExecutor:
    graph = trace(model, (torch.randn(4, 6),))
    devices = LAYOUTS.get(schedule, [0, 1]) if isinstance(schedule, str) else [0, 1]
    plan = plan_of(
        graph, even_cut(graph, len(devices)), micro_batches=4, devices=devices, replicas=options.pop("replicas", 1)
    )
    return LocalExecutor(
        graph, functional.cross_entropy, optimizer, plan, schedule=schedule, slots=1, options=TrainingOptions(**options)
    )


def clipped(model: nn.Module, optimizer: Any, schedule: str) -> tuple[MicroBatched, list[Tensor]]:
    """One process that clips as PyTorch does, and the norms that it saw."""
    reference = MicroBatched(
        copy.deepcopy(model), functional.cross_entropy, optimizer, 4, backwards=schedule == "gpipe"
    )
    norms: list[Tensor] = []

    def clip(*_: Any) -> None:
        norms.append(nn.utils.clip_grad_norm_(reference.model.parameters(), CLIP))

    reference.optimizer.register_step_pre_hook(clip)
    return reference, norms


@pytest.mark.parametrize("schedule", LAYOUTS)
def test_clipping_equals_torchs_in_one_process(schedule: str) -> None:
    model = model_of()
    executor = player_of(model, schedule, clip_norm=CLIP)
    reference, norms = clipped(model, adam, schedule)
    found: list[Tensor | None] = []
    for x, y in batches(4):
        reference.step(x, y)
        found.append(executor.step(x, y).gradient_norm)
    is_exact = not executor.schedule.splits_backward
    assert all(
        norm is not None and (torch.equal(norm, wanted) if is_exact else torch.allclose(norm, wanted, rtol=1e-6))
        for norm, wanted in zip(found, norms, strict=True)
    )
    state, wanted = executor.state_dict()["parameters"], trained_state(reference)["parameters"]
    for name in wanted:
        close = torch.equal if is_exact else torch.allclose
        assert close(state[name], wanted[name]), name
    update = executor.workers[executor.plan.workers[0]].update
    assert update.num_clipped == 4 and update.notes == ("4 updates clipped",)


@pytest.mark.parametrize("replicas", [2, (1, 3)])
def test_replicas_and_tied_parameters_count_once_in_the_norm(replicas: Any) -> None:
    model = model_of(tied=True)
    graph = trace(model, (torch.randn(4, 6),))
    plan = plan_of(graph, even_cut(graph, 2), micro_batches=4, replicas=replicas)
    assert plan.tied
    executor = LocalExecutor(graph, functional.cross_entropy, sgd, plan, options=TrainingOptions(clip_norm=CLIP))
    reference, norms = clipped(model, sgd, "one_f_one_b")
    for x, y in batches(3):
        reference.step(x, y)
        norm = executor.step(x, y).gradient_norm
        assert norm is not None and torch.allclose(norm, norms[-1], rtol=1e-5)
    state = executor.state_dict()["parameters"]
    for name, tensor in trained_state(reference)["parameters"].items():
        assert torch.allclose(state[name], tensor, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("schedule", ["one_f_one_b", "interleaved"])
def test_an_update_with_nan_is_left_out_as_if_its_batch_had_not_been(schedule: str) -> None:
    given = batches(3)
    odd = (given[1][0].clone(), given[1][1])
    odd[0][7, 2] = torch.nan  # in one micro-batch of four
    model = model_of()
    model[2] = nn.BatchNorm1d(6)
    executor, undisturbed = player_of(model, schedule, nan="skip"), player_of(model, schedule, nan="skip")
    undisturbed.step(*given[0])
    undisturbed.step(*given[2])
    assert not executor.step(*given[0]).is_skipped
    metrics = executor.step(*odd)
    assert metrics.is_skipped and "update left out" in str(metrics)
    assert not executor.step(*given[2]).is_skipped
    found, wanted = executor.state_dict(), undisturbed.state_dict()
    for kind in ("parameters", "buffers"):
        assert all(torch.equal(found[kind][name], wanted[kind][name]) for name in wanted[kind])
    for name, state in wanted["optimizer"].items():
        assert all(torch.equal(found["optimizer"][name][key], state[key]) for key in state)
    assert [worker.update.num_skipped for worker in executor.workers.values()] == [1] * len(executor.workers)


def test_a_skipped_update_does_not_move_the_learning_rate() -> None:
    model, (x, y) = model_of(), batches(1)[0]
    graph = trace(model, (x,))
    plan = plan_of(graph, even_cut(graph, 2), micro_batches=4)
    executor = LocalExecutor(
        graph,
        functional.cross_entropy,
        OptimizerMaker(sgd, lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)),
        plan,
        options=TrainingOptions(nan="skip"),
    )
    executor.step(x * torch.nan, y)
    executor.step(x, y)
    assert {options["lr"] for options in executor.state_dict()["options"].values()} == {0.25}


def test_raising_names_the_parameters_before_anybody_has_updated() -> None:
    model = model_of()
    executor = player_of(model, nan="raise")
    x, y = batches(1)[0]

    def spoil(gradient: Tensor) -> Tensor:
        return gradient * torch.nan

    last = executor.stages()[-1]
    last.versions.parameters["7.weight"].register_hook(spoil)  # pyright: ignore[reportUnknownMemberType]
    before = {name: one.clone() for stage in executor.stages() for name, one in stage.versions.parameters.items()}
    with pytest.raises(GradientNotFinite, match=r"makes version 1 .*: 7\.weight\. No worker has updated") as caught:
        executor.step(x, y)
    assert caught.value.parameters == ("7.weight",)
    for stage in executor.stages():
        assert all(torch.equal(one, before[name]) for name, one in stage.versions.parameters.items())


def test_schedules_that_cannot_wait_for_a_norm_refuse_it_and_say_why() -> None:
    for name in ("pipedream", "pipedream_2bw", "zb_h2", "zb_v"):
        with pytest.raises(ScheduleInvalid, match=f"clip_norm=1 cannot be had: {name} lets workers step at different"):
            TrainingOptions(clip_norm=1.0).schedule(name)
    with pytest.raises(ScheduleInvalid, match="nan='skip' needs a schedule with norm=True"):
        TrainingOptions(nan="skip").schedule(make_schedule("gpipe"))
    assert TrainingOptions(nan="skip").schedule(made := make_schedule("gpipe", norm=True)) is made
    assert not TrainingOptions().schedule("gpipe").norm


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"clip_norm": 0.0}, ValueError, "clip_norm must be a number above 0, or None, not 0.0"),
        ({"clip_norm": float("nan")}, ValueError, "a number above 0, or None, not nan"),
        ({"clip_norm": float("inf")}, ValueError, "a number above 0, or None, not inf"),
        # It was: '>' not supported between instances of 'str' and 'int'.
        ({"clip_norm": "1.0"}, TypeError, "clip_norm is of type str; give a number above 0, or None"),
        ({"accumulate": 0}, ValueError, "a number of steps, 1 or more, not 0"),
        ({"accumulate": 2.5}, TypeError, "accumulate is of type float; give a number of steps, 1 or more"),
        ({"nan": "zero"}, ValueError, "one of 'pass', 'raise', 'skip', not 'zero'"),
        ({"autocast": torch.float64}, ValueError, "torch.bfloat16 or None, not torch.float64"),
    ],
)
def test_options_are_checked_at_the_door(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TrainingOptions(**options)


def test_the_norm_does_not_depend_on_how_parameters_lie_in_stages() -> None:
    gradients = {position: torch.randn(7) * 10.0**position for position in range(6)}
    whole = Norms.of(gradients)
    for order in ([5, 0, 3, 1, 4, 2], [2, 1, 0, 5, 4, 3]):
        parts = [Norms.of({position: gradients[position]}) for position in order]
        total = sum(parts[1:], parts[0] + Norms.of({}))
        assert torch.equal(total.total, whole.total)
    assert Norms.of({1: torch.tensor([torch.inf]), 0: torch.ones(1)}).odd == [1]
    factor = judge(whole, TrainingOptions(clip_norm=1e9), (), 1, 0)
    assert not factor.clips and not factor.skips
