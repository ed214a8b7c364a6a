"""The formula of limiters against a model that counts in fractions, and the settings that choose its numbers."""

from __future__ import annotations

import math
import pickle
import random
import warnings
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ropewalk.rl.replay.limiters import MinSize, QueueLimiter, RateLimiter, SampleToInsertRatio, StackLimiter
from ropewalk.rl.replay.limiters.limiter import Limiter, TableCounts

RATIOS = st.one_of(st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0]), st.integers(1, 64).map(lambda n: n / 8))


@st.composite
def limiters(draw: st.DrawFn) -> RateLimiter:
    """Limiters of all kinds that their own check accepts."""
    kind = draw(st.sampled_from(["min", "queue", "stack", "ratio", "pair", "any"]))
    ratio, size = draw(RATIOS), draw(st.integers(1, 12))
    low, width = draw(st.integers(-40, 40)), draw(st.integers(0, 40))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            match kind:
                case "min":
                    return MinSize(size).formula()
                case "queue":
                    return QueueLimiter(size).formula()
                case "stack":
                    return StackLimiter(size).formula()
                case "ratio":
                    return SampleToInsertRatio(ratio, size, draw(st.floats(0, 30))).formula()
                case "pair":
                    return SampleToInsertRatio(ratio, size, (low, low + width)).formula()
                case _:
                    return RateLimiter(ratio, size, low / 4, (low + width) / 4)
    except ValueError:
        assume(False)
        raise


class OneByOne:
    """A table of items that counts in fractions, one item at a time; a step that may not be done is not done."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter, self.size, self.inserts, self.owed = limiter, 0, 0, Fraction(0)

    def may_insert(self, num: int) -> bool:
        if self.size + num <= self.limiter.min_size:
            return True
        return self.owed + num * Fraction(self.limiter.samples_per_insert) <= self.limiter.max_diff

    def may_sample(self, num: int) -> bool:
        return self.size >= self.limiter.min_size and self.owed - num >= self.limiter.min_diff

    def insert(self, num: int) -> None:
        self.size, self.inserts = self.size + num, self.inserts + num
        self.owed += num * Fraction(self.limiter.samples_per_insert)


@settings(max_examples=60, deadline=None)
@given(limiters(), st.integers(0, 1 << 40))
def test_interleavings_are_decided_as_by_the_model(limiter: RateLimiter, seed: int) -> None:
    decide_as_the_model(limiter, seed)


@pytest.mark.soak
@settings(max_examples=400, deadline=None)
@given(limiters(), st.integers(0, 1 << 40))
def test_ten_thousand_interleavings_are_decided_as_by_the_model(limiter: RateLimiter, seed: int) -> None:
    decide_as_the_model(limiter, seed)


def decide_as_the_model(limiter: RateLimiter, seed: int) -> None:
    """In 25 interleavings."""
    chance = random.Random(seed)
    for _ in range(25):
        model, counts = OneByOne(limiter), TableCounts()
        for _ in range(chance.randint(1, 40)):
            kind, num = chance.choice(["insert", "insert", "sample", "sample", "delete"]), chance.randint(1, 6)
            assert (limiter.may_insert(counts), limiter.may_sample(counts)) == (
                model.may_insert(1),
                model.may_sample(1),
            )
            assert limiter.may_insert(counts, num) == model.may_insert(num)
            assert limiter.may_sample(counts, num) == model.may_sample(num)
            assert limiter.num_samples(counts, num) == max([n for n in range(1, num + 1) if model.may_sample(n)] or [0])
            one_side = model.may_insert(1) or model.may_sample(1)
            assert one_side, "neither side may go on"
            assert limiter.admits(counts, num) == (model.may_insert(num) or not model.may_sample(1))
            if kind == "insert" and model.may_insert(num):
                model.insert(num)
                counts.inserts += num
            elif kind == "sample" and model.may_sample(num):
                model.owed -= num
                counts.samples += num
            elif kind == "delete" and model.size >= num:
                model.size -= num
                counts.deletes += num
            assert counts.size == model.size and limiter.owed(counts) == model.owed


@settings(max_examples=60, deadline=None)
@given(limiters(), st.integers(0, 60), st.integers(-100, 100), st.integers(0, 60))
def test_no_counts_block_both_sides(limiter: RateLimiter, inserts: int, owed: int, deletes: int) -> None:
    """Not even those that no run with this limiter leads to: after a limiter was changed, they may be there."""
    counts = TableCounts(inserts, min(deletes, inserts), round(inserts * limiter.samples_per_insert) - owed)
    assert limiter.may_insert(counts) or limiter.may_sample(counts)


def test_settings_choose_the_numbers_of_the_formula() -> None:
    assert MinSize(7).formula() == RateLimiter(1.0, 7, -math.inf, math.inf)
    assert QueueLimiter(3).formula() == StackLimiter(3).formula() == RateLimiter(1.0, 1, 0.0, 3.0)
    assert SampleToInsertRatio(2.0, 10, 5.0).formula() == RateLimiter(2.0, 10, 15.0, 25.0)
    assert SampleToInsertRatio(2.0, 10, (1.0, 30.0)).formula() == RateLimiter(2.0, 10, 1.0, 30.0)
    assert SampleToInsertRatio(4.0, 1000).formula() == RateLimiter(4.0, 1000, 3600.0, 4400.0)
    assert SampleToInsertRatio(8.0, 2).formula() == RateLimiter(8.0, 2, 8.0, 24.0)
    assert SampleToInsertRatio(0.5, 2).formula() == RateLimiter(0.5, 2, 0.0, 2.0)


def test_a_ratio_is_kept_within_its_buffer_from_the_first_sample_on() -> None:
    limiter, counts = SampleToInsertRatio(3.0, 10, 6.0).formula(), TableCounts()
    for step in range(3000):
        if limiter.may_sample(counts, 2) and step % 3:
            counts.samples += 2
        elif limiter.may_insert(counts):
            counts.inserts += 1
        if counts.inserts > 10:
            assert 24 <= 3 * counts.inserts - counts.samples <= 36
    assert counts.samples > 1000


def test_an_insertion_that_is_larger_than_the_room_goes_in_when_nothing_may_be_sampled() -> None:
    """Otherwise samplers would wait for items, and the insertion for samples."""
    limiter = SampleToInsertRatio(8.0, 1000, 800.0).formula()
    assert not limiter.may_insert(TableCounts(640), 640)
    assert limiter.admits(TableCounts(640), 640)
    assert not limiter.admits(TableCounts(1280), 640) and limiter.may_sample(TableCounts(1280))
    assert QueueLimiter(1).formula().admits(TableCounts(), 4)
    assert not QueueLimiter(1).formula().admits(TableCounts(4), 1)


def test_no_number_of_samples_is_negative() -> None:
    # More were taken than were owed: the limiter was another one then.
    assert RateLimiter(1.0, 1, 0.0, 4.0).num_samples(TableCounts(2, 0, 5), 3) == 0


def test_inserting_nothing_is_always_allowed() -> None:
    assert QueueLimiter(1).formula().admits(TableCounts(5), 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RateLimiter(0.0, 1), "samples_per_insert is 0"),
        (lambda: RateLimiter(math.inf, 1), "samples_per_insert is inf"),
        (lambda: RateLimiter(math.nan, 1), "samples_per_insert is nan"),
        (lambda: MinSize(0).formula(), "min_size is 0"),
        (lambda: RateLimiter(4.0, 1, 1.0, 4.0), r"leaves 3 samples .* needs at least 4 with"),
        (lambda: RateLimiter(1.5, 1, 0.0, 2.0), r"leaves 2 samples .* needs at least 2.5 with"),
        (lambda: RateLimiter(1.0, 1, math.nan, 2.0), "leaves nan samples"),
        (lambda: RateLimiter(2.0, 5, 11.0, 20.0), r"min_diff=11 exceeds .* = 2 \* 5 = 10"),
        (lambda: QueueLimiter(0).formula(), "of size 0 holds nothing"),
        (lambda: StackLimiter(-1).formula(), "of size -1 holds nothing"),
        (lambda: SampleToInsertRatio(8.0, 100, 7.0).formula(), r"14 wide .* = 16, .* at least 8"),
        (lambda: SampleToInsertRatio(0.5, 100, (50.0, 51.0)).formula(), r"1 wide .* = 2, .* at least 1"),
    ],
)
def test_limiters_that_would_block_are_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_the_smallest_rooms_that_are_accepted() -> None:
    RateLimiter(4.0, 1, 0.0, 4.0)
    RateLimiter(1.5, 2, 0.0, 2.5 + 0.5)
    SampleToInsertRatio(8.0, 100, 8.0).formula()
    RateLimiter(2.0, 5, 10.0, 20.0)


def test_a_limit_below_the_samples_owed_at_min_size_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"max_diff=9 is below samples_per_insert \* min_size = 2 \* 5 = 10") as told:
        RateLimiter(2.0, 5, 0.0, 9.0)
    assert told[0].filename == __file__, "it names the line that chose the numbers"
    RateLimiter(2.0, 5, 0.0, 10.0)


def test_a_limiter_has_a_formula() -> None:
    with pytest.raises(TypeError, match="formula"):
        Limiter()  # type: ignore[abstract]


def test_a_limiter_of_numbers_is_its_own_formula() -> None:
    limiter = RateLimiter(2.0, 5, 0.0, 10.0)
    assert limiter.formula() is limiter


@pytest.mark.parametrize("limiter", [MinSize(2), QueueLimiter(3), SampleToInsertRatio(2.0, 10), RateLimiter(1.0, 1)])
def test_limiters_are_compared_and_pickled_by_value(limiter) -> None:
    assert pickle.loads(pickle.dumps(limiter)) == limiter
