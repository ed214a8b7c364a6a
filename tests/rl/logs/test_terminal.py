"""Lines of progress for a person."""

from __future__ import annotations

import io

from ropewalk.rl.logs.terminal import TerminalLogger
from ropewalk.rl.logs.where_time_goes import TimeShares


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_of_a_line_is_that_since_the_last_one() -> None:
    file, clock = io.StringIO(), Clock()
    log = TerminalLogger(5.0, file, clock)
    for seconds, steps in ((20.0, 1_000), (22.0, 3_000), (25.0, 6_000), (30.0, 11_500)):
        clock.now = seconds
        row = {"steps": steps, "total_steps": 11_000, "seconds": seconds, "steps_per_s": steps / seconds}
        log("progress", row)
    log("end", row)
    assert file.getvalue().splitlines() == [
        "1,000 of 11,000 steps    9 %",  # its seconds have the start in them, and say nothing of the rate
        "6,000 of 11,000 steps   55 %   1,000 steps/s",
        "11,500 of 11,000 steps  100 %   1,100 steps/s",
        "end   11,500 of 11,000 steps  100 %   383 steps/s",
    ]


def test_one_process_says_where_its_time_goes() -> None:
    times = TimeShares()
    assert times.of_one_process() == ""
    times.add_actor({"env": 1.0, "policy": 2.0})
    times.actors["wait"] += 7.0
    assert times.of_one_process() == "time: learning 70 %, policy 20 %, env 10 %"


def test_a_program_says_which_side_waits() -> None:
    times = TimeShares()
    times.add_actor({"env": 3.0, "policy": 1.0})
    times.learner.update(wait=2.0, update=2.0)
    assert times.limit() == "actor-bound: the learner waits 50 % (actors: env 75 %, policy 25 %)"
    times.actors["wait"] += 12.0
    assert times.limit() == "learner-bound: actors wait 75 %"
