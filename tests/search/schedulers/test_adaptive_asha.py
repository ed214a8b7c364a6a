"""Adaptive ASHA is several brackets of ASHA, which its mode chooses."""

from __future__ import annotations

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.schedulers import AdaptiveASHA, StartTrial
from ropewalk.search.schedulers.adaptive_asha import AdaptiveMode
from tests.search.schedulers.orders import in_many_orders, recorded_search
from tests.search.schedulers.test_asha import PaperASHA


def rungs_of(scheduler: AdaptiveASHA) -> list[int]:
    return [len(bracket.rungs) for bracket in scheduler.brackets]


@pytest.mark.parametrize(
    ("mode", "R", "rungs"),
    [
        ("conservative", 256, [5, 4, 3, 2, 1]),
        ("standard", 256, [5, 4, 3]),
        ("aggressive", 256, [5]),
        ("conservative", 64, [4, 3, 2, 1]),
        ("standard", 64, [4, 3, 2]),
        ("standard", 4, [2, 1]),
        ("standard", 1, [1]),
    ],
)
def test_a_mode_chooses_the_brackets_that_determined_chooses(mode: AdaptiveMode, R: float, rungs: list[int]) -> None:
    scheduler = AdaptiveASHA(R=R, mode=mode)
    assert rungs_of(scheduler) == rungs
    assert [bracket.rungs[-1].budget for bracket in scheduler.brackets] == [R] * len(rungs)


def test_of_more_rungs_than_wanted_the_last_are_kept() -> None:
    assert rungs_of(AdaptiveASHA(R=4**7, mode="aggressive")) == [5]
    scheduler = AdaptiveASHA(R=64, eta=2, mode="conservative", max_rungs=2)
    assert [[rung.budget for rung in bracket.rungs] for bracket in scheduler.brackets] == [[32, 64], [64]]


def test_standard_is_the_default_and_brackets_use_about_the_same_budget() -> None:
    scheduler = AdaptiveASHA(R=16)
    assert rungs_of(scheduler) == rungs_of(AdaptiveASHA(R=16, mode="standard")) == [3, 2]
    for trial in range(22):
        start = scheduler.next()
        assert isinstance(start, StartTrial)
        scheduler.started(trial, start)
    assert [bracket.num_started for bracket in scheduler.brackets] == [16, 6], "shares 16/3 and 4/2"


@in_many_orders
def test_each_bracket_promotes_as_the_paper_says_and_the_first_goes_first(seed: int, places: int) -> None:
    search = recorded_search(
        AdaptiveASHA(R=27, eta=3, mode="conservative"), seed, places, steps=[1, 3, 9, 27, 28], num_trials=30
    )
    papers = [PaperASHA(1, 27, 3, s) for s in range(4)]
    home: dict[int, PaperASHA] = {}
    for call in search.calls:
        if call.method == "next":
            jobs = [(paper, *paper.get_job()) for paper in papers]
            expected = next(((trial, paper.budget(rung)) for paper, trial, rung in jobs if trial is not None), None)
            trial = getattr(call.answer, "trial", None)
            assert expected == (None if trial is None else (trial, call.answer.budget))
        elif call.method != "exhausted":
            what = call.arguments[0]
            if call.method == "started":
                home[what] = papers[call.arguments[1].bracket]
            home[getattr(what, "trial", what)].hear(call)


def test_a_mode_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(SearchInvalid, match="'conservative', 'standard', 'aggressive', not 'bold'"):
        AdaptiveASHA(R=4, mode="bold")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SearchInvalid, match="max_rungs must be a whole number of at least 1, not 0"):
        AdaptiveASHA(R=4, max_rungs=0)
