"""Autotune finds the quickest values that are allowed, stays where noise is all there is, and decides for all."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.autotune import AgreedAutotune, Autotune, Knob, bucket_size_knob, factor_knob
from ropewalk.exchange.groups.thread_group import ThreadGroup, run_members

LADDER = tuple(float(value) for value in range(10))


def _tune(autotune: Autotune, cost, allowed=lambda values: True, most: int = 200) -> int:
    """Measure until it is done; how many measurements that took."""
    for count in range(most):
        if autotune.done:
            return count
        values = autotune.ask()
        autotune.tell(cost(values), allowed=allowed(values))
    raise AssertionError(f"not done after {most} measurements")


@settings(deadline=None, max_examples=60)
@given(start=st.sampled_from(LADDER), least=st.sampled_from(LADDER), slope=st.floats(1.1, 3.0))
def test_a_valley_is_found_from_anywhere(start: float, least: float, slope: float) -> None:
    autotune = Autotune([Knob("size", LADDER, start)])
    count = _tune(autotune, lambda values: slope ** abs(values["size"] - least))
    assert autotune.best == {"size": least} == autotune.ask()
    assert count <= abs(start - least) + 4, "each step is measured once"


def test_two_knobs_are_tuned_until_neither_can_be_better() -> None:
    autotune = Autotune([Knob("a", LADDER, 0), Knob("b", LADDER, 9)])
    _tune(autotune, lambda values: 1 + (values["a"] - 6) ** 2 + (values["b"] + values["a"] / 4 - 5.5) ** 2)
    assert autotune.best == {"a": 6, "b": 4}


def test_noise_below_the_margin_moves_nothing() -> None:
    autotune = Autotune([bucket_size_knob(25 << 20)])
    _tune(autotune, lambda values: 1.0 if values["bucket_bytes"] == float(25 << 20) else 0.98)
    assert autotune.best == {"bucket_bytes": float(25 << 20)}


def test_what_is_not_allowed_is_not_chosen_however_quick() -> None:
    autotune = Autotune([factor_knob(10.0)])
    _tune(autotune, lambda values: 1 / values["c"], allowed=lambda values: values["c"] <= 100)
    assert autotune.best == {"c": 100.0}


def test_a_start_that_is_not_allowed_is_left() -> None:
    autotune = Autotune([factor_knob(300.0)])
    _tune(autotune, lambda values: 1 / values["c"], allowed=lambda values: values["c"] <= 100)
    assert autotune.best == {"c": 100.0}


def test_members_do_as_rank_0_measured_and_end_together() -> None:
    def member(group):
        agreed = AgreedAutotune(Autotune([bucket_size_knob(1 << 20), factor_knob(100.0)]), group, window=3)
        values = {"bucket_bytes": float(1 << 20), "c": 100.0}
        seen = []
        while not agreed.done:
            mine = 1.0 if group.rank else abs(math.log2(values["bucket_bytes"]) - 24) + values["c"] / 50
            # The first step after a change makes new buckets: a second that must not count.
            for extra in (100.0, 0.0, 0.01):
                new = agreed.after_step(mine + extra + (7.0 if group.rank else 0.0))
                if new is not None:
                    values = dict(new)
                    seen.append(tuple(values.values()))
        assert agreed.after_step(1.0) is None
        return seen

    first, second = run_members(ThreadGroup.make(2), member)
    assert first == second and len(first) > 4
    assert first[-1] == (float(1 << 24), 1.0)


def test_a_factor_beyond_the_guard_is_not_tried() -> None:
    assert factor_knob(50.0, lambda factor: factor <= 200.0).values == (1.0, 3.0, 10.0, 30.0, 50.0, 100.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Knob("c", (3.0, 1.0), 1.0),
        lambda: Knob("c", (), 1.0),
        lambda: Knob("c", (1.0, 3.0), 2.0),
        lambda: Autotune([]),
        lambda: Autotune([factor_knob(1), factor_knob(2)]),
        lambda: AgreedAutotune(Autotune([factor_knob(1)]), ThreadGroup.make(1)[0], window=1),
    ],
)
def test_knobs_are_checked_at_the_door(wrong) -> None:
    with pytest.raises(ExchangeInvalid):
        wrong()
