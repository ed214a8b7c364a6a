"""Random orders in which trials of a simulated search report, for tests that compare schedulers with references."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.search.schedulers import PromoteTrial, Scheduler
from ropewalk.testing.simulated_search import SimulatedSearch
from tests.search.curves import NUM_CONFIGURATIONS, NUM_EPOCHS, accuracy

NUM_PLACES = 8


def in_many_orders(check: Callable[[int, int], None]) -> Callable[..., None]:
    """Make a test of a check of one order, given by a seed and a number of places, from 1 to 8.

    It runs in 200 orders; `make soak` repeats it in a thousand.
    """

    @pytest.mark.parametrize("num_orders", [200, pytest.param(1000, marks=pytest.mark.soak)])
    def test(num_orders: int) -> None:
        # Eight orders for each example, because an example costs hypothesis more than a search.
        @settings(max_examples=num_orders // NUM_PLACES, deadline=None, derandomize=True, database=None)
        @given(seed=st.integers(0, 2**32))
        def check_eight(seed: int) -> None:
            for places in range(1, NUM_PLACES + 1):
                check(seed + places, places)

        check_eight()

    test.__name__ = test.__qualname__ = check.__name__
    test.__module__ = check.__module__
    return test


def recorded_search(scheduler: Scheduler, seed: int, places: int, **options: Any) -> SimulatedSearch:
    """A search that is over, of trials that learn as recorded, in an order that follows from the seed."""
    rng = random.Random(seed)
    first = rng.randrange(NUM_CONFIGURATIONS)
    options = {"steps": range(1, NUM_EPOCHS + 1), "num_trials": 24, **options}
    search = SimulatedSearch(
        scheduler, lambda trial, step: accuracy(first + trial, step), rng=rng, places=places, **options
    )
    search.run()
    return search


def evaluations(search: SimulatedSearch) -> set[tuple[int, float]]:
    """Every trial with every budget that it was given."""
    given_out: set[tuple[int, float]] = set()
    for call in search.calls:
        if call.method == "started":
            given_out.add((call.arguments[0], call.arguments[1].budget))
        elif call.method == "promoted":
            promote: PromoteTrial = call.arguments[0]
            given_out.add((promote.trial, promote.budget or 0))
    return given_out
