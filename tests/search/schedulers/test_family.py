"""Schedulers are found by name, made from options, and added by others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.search.schedulers import ASHA, SCHEDULERS, NoScheduler, make_scheduler, register_scheduler


class Patient(NoScheduler):
    """A scheduler of somebody else."""


@pytest.fixture
def _added() -> Iterator[None]:
    yield
    SCHEDULERS.pop("patient", None)


def test_a_scheduler_is_made_from_its_name_and_options() -> None:
    scheduler = make_scheduler("asha", R=27, eta=3)
    assert isinstance(scheduler, ASHA)
    assert [rung.budget for rung in scheduler.brackets[0].rungs] == [1, 3, 9, 27]
    assert make_scheduler(scheduler) is scheduler


def test_a_misspelt_name_or_option_is_answered_with_the_near_one() -> None:
    with pytest.raises(SearchInvalid, match="no scheduler 'ahsa'; did you mean 'asha'\\? There are none, asha"):
        make_scheduler("ahsa")
    with pytest.raises(SearchInvalid, match="has no option 'graze'; did you mean 'grace'\\?"):
        make_scheduler("median_stopping", graze=3)
    with pytest.raises(SearchInvalid, match="needs the option 'R'"):
        make_scheduler("hyperband")


def test_options_of_a_scheduler_that_is_made_already_are_refused() -> None:
    with pytest.raises(SearchInvalid, match="is configured already; it takes no R"):
        make_scheduler(NoScheduler(), R=27)


@pytest.mark.usefixtures("_added")
def test_a_scheduler_is_added_under_a_name_that_is_free() -> None:
    register_scheduler("patient", Patient)
    assert isinstance(make_scheduler("patient"), Patient)
    with pytest.raises(SearchInvalid, match="'asha' is the name of"):
        register_scheduler("asha", Patient)
