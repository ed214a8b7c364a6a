"""`exact` against brute force, and on real models."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import NoPlanFits
from ropewalk.pipeline.cost import objective_s
from ropewalk.pipeline.partitioners.exact import Exact
from ropewalk.pipeline.partitioners.partitioner import Request
from ropewalk.pipeline.plans import assemble
from tests.pipeline.partitioners.brute_force import least_objective_s, requests


def check_against_brute_force(request: Request) -> None:
    best = least_objective_s(request)
    if best == math.inf:
        with pytest.raises(NoPlanFits):
            Exact().partition(request)
        return
    found = Exact().partition(request)
    assemble(request.profile, found.stages, schedule="pretend", micro_batches=1)
    assert objective_s(request, found.stages) == found.objective_s
    assert found.objective_s == pytest.approx(best, rel=1e-9, abs=1e-15)
    assert found.lower_bound_s == pytest.approx(best, rel=1e-9, abs=1e-15)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4).flatmap(lambda count: requests((count,))))
def test_on_one_level_it_is_as_good_as_brute_force(request: Request) -> None:
    check_against_brute_force(request)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([(2, 2), (1, 3), (3, 1)]).flatmap(requests))
def test_on_two_levels_it_is_as_good_as_brute_force(request: Request) -> None:
    check_against_brute_force(request)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([(3,), (4,), (2, 2)]).flatmap(lambda counts: requests(counts, num_kinds=2, most=4)))
def test_with_two_kinds_of_devices_it_is_as_good_as_brute_force(request: Request) -> None:
    check_against_brute_force(request)
