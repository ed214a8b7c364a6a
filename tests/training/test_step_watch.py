"""Steps are shown in their order when their losses are known, and counted when they are admitted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.training.step_handle import StepHandle
from ropewalk.training.step_watch import StepWatch


class Shown:
    """A progress line and an observer that note what they are told."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.is_on = is_on
        self.lines: list[tuple[int, float, int, bool]] = []
        self.steps: list[int] = []

    def put(self, step: int, loss: float, num_samples: int, *, is_last: bool) -> None:
        self.lines.append((step, loss, num_samples, is_last))

    def step(self, handle: StepHandle) -> None:
        self.steps.append(handle.step)


def admitted(watch: StepWatch, number: int, x: Any) -> StepMetrics:
    metrics = StepMetrics(1, Loss(lambda output, labels: output))
    watch.put(StepHandle(number, metrics, lambda: None), metrics, x)
    return metrics


def watch_of(shown: Shown, *, progress: bool = True) -> StepWatch:
    line: Any = shown if progress else None
    return StepWatch(TrainingOptions(), line, shown)  # type: ignore[arg-type]


def test_a_step_that_is_done_waits_for_the_steps_before_it() -> None:
    shown = Shown()
    watch = watch_of(shown)
    first, second = admitted(watch, 0, torch.ones(4, 2)), admitted(watch, 1, torch.ones(6, 2))
    second.put(0, torch.tensor(2.0), 1.0)
    watch.look(pytest.fail)
    assert shown.steps == []
    first.put(0, torch.tensor(1.0), 1.0)
    watch.look(pytest.fail)
    watch.look(pytest.fail)
    assert shown.steps == [0, 1]
    assert shown.lines == [(0, 1.0, 4, False), (1, 2.0, 6, True)]


def test_samples_are_those_of_the_first_tensor_that_has_a_batch() -> None:
    watch = watch_of(Shown())
    assert watch.samples_per_step == 0
    admitted(watch, 0, (torch.tensor(3.0), {"x": torch.ones(4, 2)}))
    admitted(watch, 1, torch.ones(8))
    assert watch.samples_per_step == 6


def test_stages_that_read_their_own_data_leave_samples_unknown() -> None:
    watch = watch_of(Shown())
    admitted(watch, 0, None)
    assert watch.samples_per_step == 0


def test_without_a_line_and_a_run_no_step_is_kept() -> None:
    shown = Shown(is_on=False)
    watch = watch_of(shown, progress=False)
    admitted(watch, 0, torch.ones(4)).put(0, torch.tensor(1.0), 1.0)
    watch.look(pytest.fail)
    assert shown.steps == []


def test_a_loss_that_is_not_finite_is_told_all_the_same() -> None:
    said: list[str] = []
    watch = watch_of(Shown(is_on=False), progress=False)
    admitted(watch, 0, torch.ones(4)).put(0, torch.tensor(math.nan), 1.0)
    watch.look(said.append)
    assert len(said) == 1
    assert said[0].startswith("the loss of step 0 is nan")
