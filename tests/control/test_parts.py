"""What a process of a thing launched, and the pool that evaluates for it, are parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.control.parts import below_wholes, pool_of, wholes_of
from ropewalk.control.view import ProcessView, View


def thing(
    kind: Any, name: str, *, pool: str = "", pid: int = 1, started: float = 0.0, at: float = 100.0,
    state: str = "running", pids: Sequence[int] = (), host: str = "this host",
) -> View:  # fmt: skip
    return View(
        kind=kind, name=name, id=f"{kind} {name} {started}", pid=pid, state=state, started=started, at=at,
        facts={"pool": pool} if pool else {},
        processes=tuple(ProcessView(name=f"{name}.{n}", pid=one, host=host) for n, one in enumerate(pids)),
    )  # fmt: skip


def order(*views: View) -> list[tuple[str, int]]:
    return [(view.name, depth) for view, depth in below_wholes(views)]


def test_the_newest_pool_of_that_name_in_the_same_launcher_is_meant() -> None:
    whole = thing("population", "ES", pool="p")
    old, new = thing("pool", "p", started=1.0), thing("pool", "p", started=2.0)
    ended = thing("pool", "p", started=3.0, state="closed")
    others = [thing("pool", "p", pid=2, started=9.0), thing("pool", "q", started=9.0), thing("program", "p")]
    assert pool_of(whole, [whole, old, new, ended, *others]) is new
    assert pool_of(whole, [whole, *others]) is None
    assert pool_of(thing("population", "ES"), [old]) is None


def test_a_pool_stands_below_the_first_that_it_evaluates_for() -> None:
    lone, pool = thing("pool", "lone", started=3.0), thing("pool", "p", started=2.0)
    first, second = thing("search", "s", pool="p"), thing("population", "ES", pool="p")
    assert order(lone, pool, first, second) == [("lone", 0), ("s", 0), ("p", 1), ("ES", 0)]


def test_what_a_process_launched_stands_below_its_pool_and_that_below_its_search() -> None:
    pool = thing("pool", "p", pids=[7, 8], started=1.0)
    nested = [thing("pool", f"of {pid}", pid=pid, started=2.0 + pid) for pid in (8, 7)]
    search = thing("search", "s", pool="p")
    assert order(*nested, pool, search) == [("s", 0), ("p", 1), ("of 8", 2), ("of 7", 2)]


def test_a_pid_that_means_another_process_makes_no_part() -> None:
    whole = thing("pool", "p", pids=[7], started=10.0, at=20.0)
    assert wholes_of([whole, thing("pool", "later", pid=7, started=40.0)]) == {}
    assert wholes_of([whole, thing("pool", "earlier", pid=7, started=5.0)]) == {}
    assert wholes_of([thing("pool", "p", pids=[7], host="n17"), thing("pool", "q", pid=7, started=5.0)]) == {}
    threads = thing("program", "threads", pid=7, pids=[7])
    assert wholes_of([threads, thing("pool", "beside", pid=7, started=5.0)]) == {}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.sets(st.integers(1, 4), max_size=2)), max_size=6))
def test_everything_is_shown_once_whatever_the_pids_are(given: list[tuple[int, int, set[int]]]) -> None:
    views = [
        View(kind="pool", name=str(n), id=str(n), pid=pid, state="running", started=float(started), at=9.0,
             processes=tuple(ProcessView(name=str(one), pid=one) for one in pids))
        for n, (pid, started, pids) in enumerate(given)
    ]  # fmt: skip
    assert sorted(view.id for view, _ in below_wholes(views)) == sorted(view.id for view in views)
