from __future__ import annotations

from ropewalk.control.view import ProcessView
from ropewalk.page.relatives import relatives
from tests.page.seen_views import view


def test_a_thing_links_to_its_whole_and_to_its_parts_with_the_process_that_launched_them():
    outer = view(ProcessView(name="outer.0", pid=8), ProcessView(name="outer.1", pid=9), name="outer", id="o")
    parts = [view(name=f"of {pid}", id=str(pid), pid=pid, started=1.0 + pid) for pid in (9, 8)]
    found = relatives(outer, [*parts, outer])
    assert found.whole is None
    assert found.parts == (("pool of 8 (in outer.0)", "8"), ("pool of 9 (in outer.1)", "9"))
    assert relatives(parts[0], [*parts, outer]).whole == ("pool outer (in outer.1)", "o")


def test_the_pool_whose_workers_are_shown_as_processes_is_not_listed_again():
    whole = view(kind="population", name="ES", id="es", facts={"pool": "p"})
    pool = view(name="p", id="p", started=1.0)
    assert relatives(whole, [whole, pool]).parts == ()
    assert relatives(pool, [whole, pool]).whole == ("population ES", "es")
