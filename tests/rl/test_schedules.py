from __future__ import annotations

import pytest

from ropewalk.rl.schedules import LinearSchedule


def test_a_schedule_is_a_line_that_then_stays() -> None:
    schedule = LinearSchedule(1.0, 0.2, until=0.5)
    assert [schedule.at(progress) for progress in (0.0, 0.25, 0.5, 0.9, 1.0)] == pytest.approx(
        [1.0, 0.6, 0.2, 0.2, 0.2]
    )


def test_progress_outside_of_the_experiment_gives_the_nearer_end() -> None:
    assert LinearSchedule(1.0, 0.0).at(-0.1) == 1.0
    assert LinearSchedule(1.0, 0.0).at(1.5) == 0.0


@pytest.mark.parametrize("until", [0.0, -1.0, 1.5])
def test_a_share_that_is_none_is_refused(until: float) -> None:
    with pytest.raises(ValueError, match=f"until={until} must be above 0"):
        LinearSchedule(1.0, 0.0, until=until)
