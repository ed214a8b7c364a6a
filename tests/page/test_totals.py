from __future__ import annotations

import pytest

from ropewalk.control.view import ProcessView
from ropewalk.page.totals import totals
from tests.page.seen_views import seen_of, view


def worker(name: str, *, done: int = 0, cpu_s: float = 0.0, state: str = "running", restarts: int = 0) -> ProcessView:
    return ProcessView(name=name, state=state, done=done, cpu_s=cpu_s, memory_bytes=2**20, restarts=restarts)


def test_memory_restarts_and_processes_that_are_up_are_added():
    sums = totals(seen_of(view(worker("a"), worker("b", state="restarting", restarts=2), worker("c", state="idle"))))
    assert (sums.up, sums.processes, sums.memory_bytes, sums.restarts) == (2, 3, 3 * 2**20, 2)
    assert (sums.cores, sums.rate, sums.rates) == (None, None, ())


def test_cpu_and_rate_are_those_of_the_last_seconds():
    looks = [view(worker("a", done=10 * t, cpu_s=0.5 * t), worker("b", done=5 * t), at=float(t)) for t in range(1, 5)]
    sums = totals(seen_of(*looks))
    assert (sums.cores, sums.rate, sums.rates) == (pytest.approx(0.5), pytest.approx(15.0), (15.0, 15.0, 15.0))
    assert sums.rate_of == ""


def test_a_process_that_was_started_again_does_not_lower_the_sums():
    sums = totals(seen_of(view(worker("a", done=100, cpu_s=50.0), at=1.0), view(worker("a", done=3), at=2.0)))
    assert (sums.cores, sums.rate) == (0.0, 0.0)


def test_a_rate_among_the_facts_is_shown_rather_than_counted():
    looks = [view(facts={"bytes_per_s": 9.0, "tasks_per_s": rate, "workers": 2}, at=rate) for rate in (1.0, 2.0)]
    sums = totals(seen_of(*looks))
    assert (sums.rate, sums.rate_of, sums.rates) == (2.0, "tasks", (1.0, 2.0))
