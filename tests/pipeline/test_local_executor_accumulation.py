"""Updates of several steps equal those of one mini-batch of all their samples."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.resuming import can_cut
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.reference_process import MicroBatched, trained_state

pytestmark = pytest.mark.usefixtures("one_thread")

LAYOUTS = {"interleaved": [0, 1, 0, 1], "zb_v": [0, 1, 1, 0]}
FLUSHING = [name for name, kind in SCHEDULES.items() if kind.flushes]


def model_of() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)


def player_of(model: nn.Module, schedule: str, replicas: int = 1, **options: Any) -> LocalExecutor:
    graph = trace(model, (torch.randn(4, 6),))
    devices = LAYOUTS.get(schedule, [0, 1])
    plan = plan_of(graph, even_cut(graph, len(devices)), micro_batches=4, devices=devices, replicas=replicas)
    return LocalExecutor(
        graph, functional.cross_entropy, sgd, plan, schedule=schedule, slots=1, options=TrainingOptions(**options)
    )


@pytest.mark.parametrize("schedule", FLUSHING)
def test_accumulated_steps_equal_one_step_with_all_their_micro_batches(schedule: str) -> None:
    model = model_of()
    executor = player_of(model, schedule, accumulate=3)
    reference = MicroBatched(copy.deepcopy(model), functional.cross_entropy, sgd, 12)
    for update in range(2):
        given = [batch(12, 3 * update + part) for part in range(3)]
        reference.step(*(torch.cat(parts) for parts in zip(*given, strict=True)))
        for part, (x, y) in enumerate(given):
            assert executor.step(x, y).done
            stages = executor.stages()
            assert [stage.versions.newest for stage in stages] == [update + (part == 2)] * len(stages)
    found, wanted = executor.state_dict(), trained_state(reference)
    for kind in ("parameters", "buffers"):
        for name, tensor in wanted[kind].items():
            assert torch.allclose(found[kind][name], tensor, rtol=1e-5, atol=1e-7), name
    if schedule == "one_f_one_b":
        assert all(torch.equal(found["parameters"][name], one) for name, one in wanted["parameters"].items())
    assert found["buffers"]["1.num_batches_tracked"] == 2


def test_short_steps_and_a_drain_before_the_last_one_count_all_samples_alike() -> None:
    model = nn.Sequential(*[layer for layer in model_of() if not isinstance(layer, nn.BatchNorm1d)])
    for replicas in (1, 2):
        executor = player_of(model, "one_f_one_b", replicas, accumulate=4, clip_norm=1e9)
        given = [batch(12, 0), batch(2, 1), batch(7, 2)]
        metrics = [executor.step(x, y) for x, y in given]
        assert [one.gradient_norm for one in metrics] == [None] * 3
        executor.drain()
        executor.drain()
        plain = copy.deepcopy(model)
        optimizer, pieces = sgd(list(plain.parameters())), [4, 2, 4]
        for (x, y), num in zip(given, pieces, strict=True):
            for part, labels in zip(x.tensor_split(num), y.tensor_split(num), strict=True):
                (functional.cross_entropy(plain(part), labels, reduction="sum") / 21).backward()
        optimizer.step()
        state = executor.state_dict()["parameters"]
        for name, parameter in plain.named_parameters():
            assert torch.allclose(state[name], parameter, rtol=1e-5, atol=1e-7), name
        assert {stage.versions.newest for stage in executor.stages()} == {1}


def test_what_was_decided_about_an_update_is_given_out_once() -> None:
    executor = player_of(model_of(), "interleaved", accumulate=2, clip_norm=1e9)
    updates = [worker.update for worker in executor.workers.values()]
    found: list[list[bool]] = []
    for step in range(5):
        assert (executor.step(*batch(8, step)).gradient_norm is None) == (step % 2 == 0)
        found.append([update.take_verdict() is not None for update in updates])
    assert found == [[False, step % 2 == 1] for step in range(5)]  # the executor has taken that of the first
    executor.drain()
    assert all(update.take_verdict() is not None for update in updates)
    assert all(update.take_verdict() is None for update in updates)


def test_a_run_can_be_cut_only_where_nothing_is_accumulated() -> None:
    schedule = make_schedule("gpipe", accumulate=2)
    graph = trace(model_of(), (torch.randn(4, 6),))
    plan = plan_of(graph, even_cut(graph, 2), micro_batches=4)
    stream = schedule.stream(plan)
    seen: list[tuple[bool, int]] = []
    for _ in range(4):
        rows = stream.admit(4)
        steps = sum(action.kind is ActionKind.STEP for row in rows.values() for action in row)
        seen.append((can_cut(plan, schedule, stream.position), steps))
    assert seen == [(False, 0), (True, 2), (False, 0), (True, 2)]
    stream.admit(4)
    assert [[str(action) for action in row] for row in stream.drain().values()] == [["U0v3"], ["U1v3"]]
    assert [list(row) for row in stream.drain().values()] == [[], []]


def test_schedules_that_update_at_moments_of_their_own_refuse_it() -> None:
    for name in ("pipedream", "pipedream_2bw"):
        with pytest.raises(ScheduleInvalid, match=f"accumulate=2 cannot be had: {name} updates while .* more micro-b"):
            TrainingOptions(accumulate=2).schedule(name)
    with pytest.raises(ScheduleInvalid, match="needs a schedule with accumulate=2"):
        TrainingOptions(accumulate=2).schedule(make_schedule("gpipe"))
    with pytest.raises(ValueError, match="1 or more, not 0"):
        TrainingOptions(accumulate=0)
