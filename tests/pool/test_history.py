"""The history of a pool's workers, for people and for the page."""

from __future__ import annotations

from ropewalk.pool.history import PoolHistory, WorkerDeath
from ropewalk.supervision.failure import DeathRecord


def death(number: int, retried: str = "") -> WorkerDeath:
    return WorkerDeath(DeathRecord(name="pool-1.0", host="here", pid=number), retried)


def test_only_the_last_deaths_are_kept_but_all_are_counted() -> None:
    history = PoolHistory()
    for number in range(1005):
        history.died("pool-1.0", death(number))
    assert history.num_deaths == 1005
    assert [record.pid for record in history.deaths] == list(range(5, 1005))


def test_a_death_is_an_event_and_so_is_the_task_that_starts_again() -> None:
    history = PoolHistory()
    history.note("a host has joined", "join")
    history.died("pool-1.0", death(1, retried="render 7"))
    history.died("pool-1.1", death(2))
    assert list(history.events) == ["a host has joined"]
    assert [(event.kind, event.text, event.process) for event in history.views()] == [
        ("join", "a host has joined", ""),
        ("death", death(1).record.describe(), "pool-1.0"),
        ("retry", "render 7 starts again", "pool-1.0"),
        ("death", death(2).record.describe(), "pool-1.1"),
    ]


def test_planned_replacements_are_events_and_do_not_push_out_deaths() -> None:
    history = PoolHistory()
    history.died("pool-1.0", death(1))
    for number in range(2000):
        history.replaced(f"pool-1.{number}", 1)
    deaths, *replacements = history.views()
    assert deaths.kind == "death"
    assert {event.kind for event in replacements} == {"replacement"}
    assert replacements[-1].text == ("pool-1.1999 has run its 1 chunk of tasks (maxtasksperchild), and is replaced")
    assert len(replacements) == 100
    assert list(history.events) == [], "`status` tells of changes alone"
