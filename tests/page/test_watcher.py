from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from ropewalk.control.view import ProcessView, View
from ropewalk.page.watcher import LookResult, Watcher, merged
from tests.patience import PATIENCE_S


class Things:
    """A source that the test controls."""

    def __init__(self) -> None:
        self.looks: list[LookResult] = []
        self.asked: list[dict[str, dict[str, int]]] = []

    def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
        self.asked.append({id: dict(mine) for id, mine in panels.items()})
        return self.looks


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def view(at: float = 0.0, **more: Any) -> View:
    fields: dict[str, Any] = {"kind": "pool", "name": "p", "id": "p", "pid": 1, "state": "running", "started": 0.0}
    whole: dict[str, Any] = {**fields, "at": at, **more}
    return View(**whole)


@pytest.fixture
def things() -> Things:
    return Things()


def test_what_does_not_answer_keeps_its_last_view_and_says_why(things: Things):
    watcher = Watcher(things)
    things.looks = [LookResult("p", view(facts={"done": 3}))]
    watcher.look()
    things.looks = [LookResult("p", None, "its process is stopped")]
    watcher.look()
    (seen,) = watcher.things()
    assert (seen.view.facts, seen.problem, seen.gone, seen.is_live) == (
        {"done": 3},
        "its process is stopped",
        False,
        False,
    )


def test_what_is_gone_keeps_its_last_view_and_comes_back(things: Things):
    watcher = Watcher(things)
    things.looks = [LookResult("p", view())]
    watcher.look()
    things.looks = []
    watcher.look()
    assert [(seen.gone, seen.is_live) for seen in watcher.things()] == [(True, False)]
    things.looks = [LookResult("p", view())]
    watcher.look()
    assert [(seen.gone, seen.is_live) for seen in watcher.things()] == [(False, True)]


def test_what_is_gone_for_an_hour_is_forgotten(things: Things):
    clock = Clock()
    watcher = Watcher(things, clock)
    things.looks = [LookResult("p", view())]
    watcher.look()
    things.looks = []
    clock.now += 3599.0
    watcher.look()
    assert watcher.seen("p")
    clock.now += 2.0
    watcher.look()
    assert watcher.seen("p") is None


def test_panels_are_asked_for_only_while_somebody_looks_at_them(things: Things):
    watcher = Watcher(things)
    watcher.want("tab 1", "p", frozenset({"stream"}))
    watcher.want("tab 2", "p", frozenset({"tasks"}))
    watcher.look()
    watcher.unwant("tab 1")
    watcher.look()
    watcher.unwant("tab 2")
    watcher.look()
    assert things.asked == [{"p": {"stream": 0, "tasks": 0}}, {"p": {"tasks": 0}}, {}]


def test_what_is_not_wanted_again_is_not_looked_at_any_more(things: Things):
    clock = Clock()
    watcher = Watcher(things, clock)
    watcher.want("hidden", "p", frozenset({"stream"}))
    clock.now += 9.0
    watcher.want("shown", "p", frozenset({"tasks"}))
    assert watcher.is_wanted()
    watcher.look()
    clock.now += 9.0
    assert watcher.is_wanted()
    watcher.look()
    clock.now += 2.0
    assert not watcher.is_wanted()
    assert things.asked == [{"p": {"stream": 0, "tasks": 0}}, {"p": {"tasks": 0}}]


def test_rows_after_the_cursor_follow_those_that_are_there(things: Things):
    watcher = Watcher(things)
    watcher.want("tab", "p", frozenset({"stream"}))
    things.looks = [LookResult("p", view(panels={"stream": {"cursor": 2, "tasks": [1, 2], "now": 5.0}}))]
    watcher.look()
    things.looks = [LookResult("p", view(panels={"stream": {"cursor": 3, "tasks": [3], "now": 6.0}}))]
    watcher.look()
    seen = watcher.seen("p")
    assert seen and seen.panels == {"stream": {"cursor": 3, "tasks": [1, 2, 3], "now": 6.0}}
    assert things.asked[1] == {"p": {"stream": 2}}
    assert seen.view.panels == {}


def test_panels_without_a_cursor_are_replaced():
    assert merged({"done": 3, "rows": [1]}, {"done": 4, "rows": [2]}) == {"done": 4, "rows": [2]}
    assert merged(None, {"cursor": 1, "rows": [1]}) == {"cursor": 1, "rows": [1]}


def test_what_is_not_new_stays_the_same_object():
    whole = merged(None, {"cursor": 1, "rows": [1]})
    assert merged(whole, {"cursor": 1, "rows": []}) is whole
    assert merged(whole, {"cursor": 2, "rows": [2]}) == {"cursor": 2, "rows": [1, 2]}
    replaced = merged(None, {"done": 3, "rows": [1]})
    assert merged(replaced, {"done": 3, "rows": [1]}) is replaced


def test_rows_are_bounded():
    whole = merged({"cursor": 1, "rows": list(range(19_999))}, {"cursor": 2, "rows": ["a", "b"]})
    assert len(whole["rows"]) == 20_000 and whole["rows"][0] == 1 and whole["rows"][-2:] == ["a", "b"]


def test_rates_and_shares_of_cpu_follow_from_views(things: Things):
    watcher = Watcher(things)
    for at, done, cpu_s in ((10.0, 100, 1.0), (11.0, 150, 1.5), (12.0, 200, 2.5)):
        things.looks = [LookResult("p", view(at, processes=(ProcessView(name="w", done=done, cpu_s=cpu_s),)))]
        watcher.look()
        if at == 10.0:
            first = watcher.seen("p")
            assert first and first.rate("w") is None and first.cpu_share("w") is None
    seen = watcher.seen("p")
    assert seen and seen.rate("w") == 50.0 and seen.cpu_share("w") == pytest.approx(0.75)
    assert seen.rate("other") is None


def test_restart_does_not_make_a_negative_rate(things: Things):
    watcher = Watcher(things)
    for at, done in ((10.0, 100), (11.0, 2)):
        things.looks = [LookResult("p", view(at, processes=(ProcessView(name="w", done=done),)))]
        watcher.look()
    seen = watcher.seen("p")
    assert seen and seen.rate("w") == 0.0


def test_rates_go_on_after_a_clock_was_set_back(things: Things):
    watcher = Watcher(things)
    rates: list[float | None] = []
    for at, done in ((1000.0, 0), (1001.0, 10), (400.0, 20), (401.0, 30), (402.0, 40), (500.0, 50)):
        things.looks = [LookResult("p", view(at, processes=(ProcessView(name="w", done=done),)))]
        watcher.look()
        seen = watcher.seen("p")
        assert seen
        rates.append(seen.rate("w"))
    assert rates == [None, 10.0, None, 10.0, 10.0, pytest.approx(10 / 98)]


def test_nothing_is_looked_at_while_no_page_is_open():
    looked = threading.Event()

    class Noted(Things):
        def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
            looked.set()
            return super().look(panels)

    noted = Noted()
    watcher = Watcher(noted)
    watcher.start()
    try:
        assert not noted.asked
        watcher.want("tab")
        assert looked.wait(PATIENCE_S)
        watcher.unwant("tab")
    finally:
        watcher.close()
    assert watcher.num_looks == len(noted.asked) >= 1


def test_failed_look_ends_nothing(caplog: pytest.LogCaptureFixture):
    looked = threading.Event()

    class Failing(Things):
        def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
            if self.asked:
                looked.set()
            super().look(panels)
            raise OSError("no descriptors are left")

    watcher = Watcher(Failing())
    watcher.start()
    try:
        watcher.want("tab")
        assert looked.wait(PATIENCE_S)
    finally:
        watcher.close()
    assert "no descriptors are left" in caplog.text


def test_live_things_come_first_and_new_ones_before_old_ones(things: Things):
    watcher = Watcher(things)
    old, new, gone = view(id="old", started=1.0), view(id="new", started=2.0), view(id="gone", started=3.0)
    things.looks = [LookResult("old", old), LookResult("new", new), LookResult("gone", gone)]
    watcher.look()
    things.looks = things.looks[:2]
    watcher.look()
    assert [seen.view.id for seen in watcher.things()] == ["new", "old", "gone"]


def test_what_never_answered_is_a_problem_until_it_is_seen(things: Things):
    watcher = Watcher(things)
    things.looks = [LookResult("p", None, "pid 7 does not answer"), LookResult("q", None)]
    watcher.look()
    assert (watcher.problems(), watcher.things()) == (["pid 7 does not answer"], [])
    things.looks = [LookResult("p", view())]
    watcher.look()
    things.looks = [LookResult("p", None, "pid 7 does not answer")]
    watcher.look()
    assert (watcher.problems(), [seen.problem for seen in watcher.things()]) == ([], ["pid 7 does not answer"])


def test_a_problem_stays_while_the_next_answer_is_awaited(things: Things):
    watcher = Watcher(things)
    things.looks = [LookResult("p", view())]
    watcher.look()
    for problem in ("p does not answer", ""):
        things.looks = [LookResult("p", None, problem), LookResult("q", None, problem.replace("p", "q"))]
        watcher.look()
    assert ([seen.problem for seen in watcher.things()], watcher.problems()) == (
        ["p does not answer"], ["q does not answer"],
    )  # fmt: skip
    things.looks = [LookResult("p", view()), LookResult("q", view(id="q"))]
    watcher.look()
    assert ([seen.problem for seen in watcher.things()], watcher.problems()) == (["", ""], [])


def test_the_age_of_what_is_known_is_that_of_its_last_view(things: Things):
    clock = Clock()
    watcher = Watcher(things, clock)
    things.looks = [LookResult("p", view())]
    watcher.look()
    things.looks = [LookResult("p", None, "it does not answer")]
    clock.now += 5.0
    watcher.look()
    (seen,) = watcher.things()
    assert watcher.age_s(seen) == 5.0
