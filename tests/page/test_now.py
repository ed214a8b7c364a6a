from __future__ import annotations

import msgspec

from ropewalk.control.view import ProcessView
from ropewalk.page.now import has_ended, problem_words, progress_words, rate_words, shown_ended, shown_state
from ropewalk.page.thing_header import header_facts
from ropewalk.page.totals import totals
from tests.page.seen_views import seen_of, view


def test_what_is_gone_says_when_it_ended_and_keeps_its_state():
    seen = seen_of(view(progress=0.5, left_s=30.0))
    assert (has_ended(seen), shown_state(seen), problem_words(seen, 0.0)) == (False, "running", "")
    seen.gone = True
    assert (has_ended(seen), shown_state(seen)) == (True, "ended")
    assert problem_words(seen, 12.3) == "ended 12 s ago, last state kept"
    assert progress_words(seen) == "50 %"


def test_of_much_that_has_ended_the_newest_is_shown_and_the_rest_is_found():
    things = [seen_of(view(name=f"pool {at}", id=str(at), state="closed", at=float(at))) for at in range(300)]
    things.append(seen_of(view(name="pool that runs")))
    shown, num = shown_ended(things, "")
    assert ([seen.view.name for seen in shown], num) == ([f"pool {at}" for at in range(299, 199, -1)], 300)
    shown, num = shown_ended(things, "pool 17")
    assert {seen.view.name for seen in shown} == {"pool 17", *(f"pool 17{digit}" for digit in range(10))} and num == 11


def test_what_has_failed_says_so_although_it_is_gone():
    seen = seen_of(view(state="failed"))
    seen.gone = True
    assert shown_state(seen) == "failed"


def test_a_launcher_without_an_answer_is_told_apart_from_an_end():
    seen = seen_of(view())
    seen.problem = "its launcher (pid 7) does not answer\x1b[2J"
    assert (has_ended(seen), shown_state(seen)) == (False, "no answer")
    assert problem_words(seen, 5.0) == (
        "its launcher (pid 7) does not answer\\x1b[2J; last seen 5 s ago, this is its last state"
    )


def test_progress_and_time_left_are_shown_as_far_as_they_are_known():
    assert progress_words(seen_of(view())) == ""
    assert progress_words(seen_of(view(progress=0.421, left_s=61.0))) == "42 % · 1m01s left"


def test_the_header_begins_with_state_and_time_and_has_all_facts():
    seen = seen_of(view(facts={"goodput": 0.5, "restarts": 3}, at=61.0))
    assert list(header_facts(seen).items()) == [
        ("state", "running"), ("elapsed", "1m01s"), ("goodput", "50 %"), ("restarts", "3"),
    ]  # fmt: skip


def test_restarts_are_not_told_beside_the_deaths_that_caused_them():
    again = ProcessView(name="es.0", restarts=2)
    assert header_facts(seen_of(view(again)))["restarts"] == "2"
    assert "restarts" not in header_facts(seen_of(view(again, facts={"deaths": 2})))


def test_a_fact_cannot_hide_the_state():
    seen = seen_of(msgspec.structs.replace(view(), facts={"state": "all is well"}))
    assert header_facts(seen)["state"] == "running"


def test_what_stands_still_has_a_rate_of_0_and_what_ended_has_none():
    seen = seen_of(view(facts={"tasks_per_s": 12.5}), view(at=101.0, facts={"tasks_per_s": 0.0}))
    assert rate_words(seen, totals(seen)) == "0 tasks/s"
    seen.gone = True
    assert rate_words(seen, totals(seen)) == ""
    busy, uncounted = seen_of(view(facts={"tasks_per_s": 12.5})), seen_of(view())
    assert [rate_words(one, totals(one)) for one in (busy, uncounted)] == ["12.5 tasks/s", ""]
