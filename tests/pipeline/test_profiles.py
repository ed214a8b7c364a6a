"""Profiles that strangers wrote: what cannot be is refused with words, and no number is too large for an error."""

from __future__ import annotations

import math
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ProfileInvalid
from ropewalk.pipeline.profiles import Operator, Profile, SavedValue

HUGE = 10**400


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'{{"id": "a", "output_bytes": {HUGE}}}', "output_bytes of operator 'a' .* not one of very many digits"),
        (f'{{"id": "a", "parameters": {{"w": {HUGE}}}}}', "'a': parameter 'w' must have from 0 to 1e"),
        ('{"id": "a", "parameters": {"w": -1}}', "'a': parameter 'w' must have from 0 to 1e.18 bytes, not -1"),
        (
            '{"id": "a", "saved": [{"operator": "a", "size_bytes": -8}, {"operator": "a", "size_bytes": 8}]}',
            "'a': what it saves of 'a' must have from 0 to 1e.18 bytes, not -8",
        ),
        ('{"id": "a", "forward_s": 1e19}', "forward_s of operator 'a' must be a number from 0 to 1e.18, not 1e.19"),
    ],
)
def test_a_number_that_cannot_be_is_refused(text: str, says: str) -> None:
    # A huge integer ended in OverflowError, and bytes below 0 made a stage look smaller than it is.
    with pytest.raises(ProfileInvalid, match=says):
        Profile.from_json(f'{{"operators": [{text}], "edges": []}}')


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-300, 1e300])
def test_no_time_is_without_an_end(value: float) -> None:
    with pytest.raises(ProfileInvalid, match=re.escape(f"not {value!r}")):
        Profile((Operator("a", weight_gradient_s=value),), ())


def test_the_number_of_samples_is_checked() -> None:
    for num in (0, -3, HUGE):
        with pytest.raises(ProfileInvalid, match="num_samples must be from 1 to"):
            Profile((Operator("a"),), (), num_samples=num)


def test_the_largest_numbers_add_up() -> None:
    operators = tuple(
        Operator(f"op{n}", forward_s=1e18, backward_s=1e18, saved=(SavedValue("op0", 10**18),)) for n in range(9)
    )
    assert Profile(operators, ()).compute_s == pytest.approx(18e18)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 30), st.randoms(use_true_random=False))
def test_a_cycle_is_told_as_it_is(num: int, before: int, behind: int, draw: random.Random) -> None:
    """Operators that lead into the cycle, and those that it leads to, are not in it."""
    names = [f"c{n}" for n in range(num)]
    edges = [(names[n], names[(n + 1) % num]) for n in range(num)]
    edges += [(f"b{n}", f"b{n + 1}" if n + 1 < before else "c0") for n in range(before)]
    edges += [(f"d{n - 1}" if n else f"c{num - 1}", f"d{n}") for n in range(behind)]
    ids = sorted({end for edge in edges for end in edge})
    draw.shuffle(ids)
    with pytest.raises(ProfileInvalid, match="form a cycle: ") as raised:
        Profile(tuple(map(Operator, ids)), tuple(edges))
    told = re.findall(r"c\d+", str(raised.value))
    assert not re.search(r"[bd]\d", str(raised.value))
    assert told[0] == told[-1]
    if num <= 11:
        assert len(told) == num + 1
        assert all((one, other) in edges for one, other in pairwise(told))
    else:
        assert f"({num - 7} more)" in str(raised.value)


def test_a_long_cycle_with_a_long_tail_is_told_in_a_line() -> None:
    names = [f"op{n}" for n in range(60_000)]
    edges = [*pairwise(names), (names[29_999], names[0])]
    with pytest.raises(ProfileInvalid, match=r"op0 -> op1 -> .* \(29993 more\) -> .* -> op0; an operator") as raised:
        Profile(tuple(map(Operator, names)), tuple(edges))
    assert len(str(raised.value)) < 300
