from __future__ import annotations

from ropewalk.training.progress import ProgressLine


def test_lines_come_at_most_as_often_as_asked_and_tell_of_all_steps_since_the_last() -> None:
    now = 0.0
    lines: list[str] = []
    progress = ProgressLine(every_s=1.0, write=lines.append, clock=lambda: now)
    for step in range(9):
        now += 0.25
        progress.put(step, float(step), 10)
    assert lines == [
        "step 0: loss 0",
        "step 4: loss 2.5, 4 steps/s, 40 samples/s",
        "step 8: loss 6.5, 4 steps/s, 40 samples/s",
    ]


def test_the_loss_is_weighted_by_samples_and_no_time_is_no_rate() -> None:
    now = 0.0
    lines: list[str] = []
    progress = ProgressLine(every_s=2.0, write=lines.append, clock=lambda: now)
    progress.put(0, 1.0, 0)
    now = 1.0
    progress.put(1, 1.0, 30)
    now = 2.0
    progress.put(2, 2.0, 10)
    assert lines == ["step 0: loss 1", "step 2: loss 1.25, 1 steps/s, 20 samples/s"]


def test_steps_of_unknown_size_weigh_the_same_and_have_no_rate_of_samples() -> None:
    # Processes read their own data: the line said "0 samples/s", and its loss was that of one step.
    now = 0.0
    lines: list[str] = []
    progress = ProgressLine(every_s=1.0, write=lines.append, clock=lambda: now)
    for step in range(5):
        now += 0.25
        progress.put(step, float(step), 0)
    assert lines == ["step 0: loss 0", "step 4: loss 2.5, 4 steps/s"]


def test_with_a_number_of_steps_the_time_left_is_told() -> None:
    now = 0.0
    lines: list[str] = []
    progress = ProgressLine(write=lines.append, clock=lambda: now, total_steps=12)
    progress.put(0, 1.0, 10)
    for step in range(1, 4):
        now += 0.5
        progress.put(step, 1.0, 10)
    assert lines == [
        "step 0 of 12: loss 1",
        "step 2 of 12: loss 1, 2 steps/s, 20 samples/s, 4.5 s left",
    ]


def test_of_steps_that_finish_together_the_last_is_told() -> None:
    now = 0.0
    lines: list[str] = []
    progress = ProgressLine(write=lines.append, clock=lambda: now, total_steps=4)
    progress.put(0, 4.0, 10)
    now = 3.0
    for step in range(1, 4):
        progress.put(step, 1.0, 10, is_last=step == 3)
    assert lines == ["step 0 of 4: loss 4", "step 3 of 4: loss 1, 1 steps/s, 10 samples/s, 0 s left"]
