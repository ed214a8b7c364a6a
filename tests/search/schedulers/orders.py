"""Random orders in which trials of a simulated search report, for tests that compare schedulers with references."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.search.schedulers import Promote, Scheduler
from ropewalk.testing.simulated_search import SimulatedSearch
from tests.search.curves import NUM_CONFIGURATIONS, NUM_EPOCHS, accuracy

NUM_ORDERS = 1000

in_any_order = given(seed=st.integers(0, 2**32), places=st.integers(1, 9))
thousand_orders = settings(max_examples=NUM_ORDERS, deadline=None, derandomize=True, database=None)


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
            promote: Promote = call.arguments[0]
            given_out.add((promote.trial, promote.budget or 0))
    return given_out
