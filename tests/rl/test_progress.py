"""Rows of progress, of which a long run keeps some."""

from __future__ import annotations

import pytest

from ropewalk.rl import progress
from ropewalk.rl.blocks import EpisodeEnd
from ropewalk.rl.counters import Counters
from ropewalk.rl.logs.memory import MemoryLogger
from ropewalk.rl.progress import ProgressLog


def logged(num_rows: int) -> tuple[list[object], int]:
    """The steps of the rows that are kept, and the number of rows that the logger got."""
    logger = MemoryLogger()
    log = ProgressLog(logger, 100)
    for steps in range(num_rows):
        log.progress(Counters(steps=steps), {})
    return [row["steps"] for row in log.rows], len(logger.rows.get("progress", ()))


@pytest.mark.parametrize(
    ("num_rows", "kept"),
    [
        (0, []),
        (1, [0]),
        (4, [0, 1, 2, 3]),
        (5, [0, 2, 4]),
        (6, [0, 2, 4, 5]),
        (8, [0, 2, 4, 6, 7]),
        (9, [0, 4, 8]),
        (100, [0, 32, 64, 96, 99]),
    ],
)
def test_a_long_run_keeps_rows_at_equal_distances_and_the_last(
    num_rows: int, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_MOST_ROWS", 4)
    assert logged(num_rows) == (kept, num_rows)


def test_rows_tell_what_environments_say_of_episodes() -> None:
    counters = Counters()
    log = ProgressLog(MemoryLogger(), 100)
    counters.add(4, [EpisodeEnd(0, 1.0, 4, True, {"is_success": 1.0})])
    log.progress(counters, {"loss": 2.0})
    assert (log.rows[0]["episode.is_success"], log.rows[0]["episode.length"], log.rows[0]["loss"]) == (1.0, 4.0, 2.0)
