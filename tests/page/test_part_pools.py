from __future__ import annotations

from typing import Any

from ropewalk.page.part_pools import pool_of, with_pools_below
from ropewalk.page.watcher import Seen
from tests.page.seen_views import seen_of, view


def thing(kind: Any, name: str, *, pool: str = "", pid: int = 1, started: float = 0.0, gone: bool = False) -> Seen:
    facts = {"pool": pool} if pool else {}
    found = seen_of(view(kind=kind, name=name, id=f"{kind} {name} {started}", pid=pid, started=started, facts=facts))
    found.gone = gone
    return found


def test_the_newest_pool_of_that_name_in_the_same_launcher_is_meant():
    whole = thing("population", "ES", pool="p")
    old, new = thing("pool", "p", started=1.0), thing("pool", "p", started=2.0)
    ended = thing("pool", "p", started=3.0, gone=True)
    others = [thing("pool", "p", pid=2, started=9.0), thing("pool", "q", started=9.0), thing("program", "p")]
    assert pool_of(whole, [whole, old, new, ended, *others]) is new
    assert pool_of(whole, [whole, *others]) is None
    assert pool_of(thing("population", "ES"), [old]) is None


def test_a_pool_stands_below_the_first_that_it_evaluates_for():
    lone, pool = thing("pool", "lone", started=3.0), thing("pool", "p", started=2.0)
    first, second = thing("search", "s", pool="p"), thing("population", "ES", pool="p")
    order = with_pools_below([lone, pool, first, second])
    assert [(each.view.name, is_part) for each, is_part in order] == [
        ("lone", False),
        ("s", False),
        ("p", True),
        ("ES", False),
    ]
