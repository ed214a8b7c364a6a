"""What a run of a population prints while it runs."""

from __future__ import annotations

import pytest

from ropewalk.population.progress import ProgressPrinter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("shown", "lines"), [(None, [3, 6]), (True, [1, 2, 3, 4, 5, 6]), (False, [])])
def test_without_a_terminal_a_line_a_minute_is_printed(
    shown: bool | None, lines: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    printer = ProgressPrinter("ES", None, shown=shown, clock=clock)
    for generation in range(1, 7):
        clock.now += 25.0
        row = {"generation": generation, "mean": 1.0, "evaluations_per_s": 2.0, "workers": 1, "failed": 0, "dropped": 0}
        printer.row(row)
    printed = [int(line.split()[2]) for line in capsys.readouterr().err.splitlines()]
    assert printed == lines
