"""Rows that tell who asks for actions, and the generators in them."""

from __future__ import annotations

import numpy as np
import pytest

from ropewalk.rl.inference.caller_rows import GroupRequest, packed, run_number, set_words, unpacked, words_of


def test_calls_whose_rows_were_joined_are_told_apart() -> None:
    generators = [np.random.default_rng(seed) for seed in range(3)]
    facts = [(4, run_number("4#0"), 9, 3), (4, run_number("4#1"), 2, 1), (4, run_number("4#1"), 2, 2)]
    callers = [GroupRequest(*each, rng) for each, rng in zip(facts, generators, strict=True)]
    joined = packed(*callers)
    assert np.array_equal(joined, np.concatenate([packed(caller) for caller in callers]))
    calls = unpacked(joined)
    assert [(call.group, call.run, call.step, call.num_envs) for call in calls] == facts
    assert [call.rows for call in calls] == [slice(0, 3), slice(3, 4), slice(4, 6)]
    for call, rng in zip(calls, generators, strict=True):
        assert call.words == words_of(rng)
        (alone,) = unpacked(joined[call.rows])
        assert alone == call._replace(start=0, stop=call.num_envs)


def test_a_generator_goes_on_where_its_words_were_taken() -> None:
    rng = np.random.default_rng(2**100)
    rng.integers(10, size=3, dtype=np.int32)  # half of a 64-bit number is left over
    other = np.random.default_rng(1)
    set_words(other, words_of(rng))
    assert rng.bit_generator.state == other.bit_generator.state
    assert rng.integers(10, size=4, dtype=np.int32).tolist() == other.integers(10, size=4, dtype=np.int32).tolist()
    assert rng.standard_normal() == other.standard_normal()


def test_other_generators_are_refused() -> None:
    with pytest.raises(TypeError, match="knows PCG64 only, not MT19937"):
        packed(GroupRequest(0, 0, 0, 2, np.random.Generator(np.random.MT19937(0))))


def test_runs_have_numbers_of_their_own() -> None:
    assert run_number("2#0") == run_number("2#0") != run_number("2#1")
    assert all(-(2**63) <= run_number(str(number)) < 2**63 for number in range(100))
