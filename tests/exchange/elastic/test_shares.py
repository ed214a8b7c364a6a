from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.exchange.elastic.shares import batches, num_batches, pass_on, seed_of, share_out


@settings(max_examples=50, deadline=None)
@given(samples=st.integers(0, 40), size=st.integers(1, 6), data=st.data())
def test_every_sample_is_computed_once_whoever_dies(samples: int, size: int, data: st.DataObject) -> None:
    batch = torch.arange(samples)
    members = [f"w.{rank}" for rank in range(size)]
    shares = share_out(batch, members)
    sizes = [len(pieces[0]) for pieces in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    while len(members) > 1:
        members.remove(data.draw(st.sampled_from(members)))
        before, shares = shares, pass_on(shares, members)
        assert sorted(torch.cat(list(itertools.chain(*shares.values()))).tolist()) == batch.tolist()
        for name in members:  # what a member has computed stays with it
            assert all(kept is had for kept, had in zip(shares[name], before[name], strict=False))


def test_batches_are_the_same_everywhere_and_another_order_in_each_pass() -> None:
    first, again = [list(batches(10, 4, epochs=2, seed=3)) for _ in range(2)]
    assert [len(batch) for batch in first] == [4, 4, 2, 4, 4, 2]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    passes = [torch.cat(first[:3]), torch.cat(first[3:])]
    assert all(sorted(order.tolist()) == list(range(10)) for order in passes)
    assert not torch.equal(*passes)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 10), st.integers(1, 3), st.booleans())
def test_the_number_of_batches_is_known_beforehand(samples: int, size: int, epochs: int, drop_last: bool) -> None:
    if drop_last and samples < size:
        with pytest.raises(ValueError, match="no batch of"):
            num_batches(samples, size, drop_last=True)
    else:
        made = list(batches(samples, size, epochs=epochs, drop_last=drop_last, shuffle=False))
        assert len(made) == num_batches(samples, size, epochs=epochs, drop_last=drop_last)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be 1 or more, not 0"):
        next(batches(3, 0))


def test_seeds_differ_by_every_fact() -> None:
    seeds = {seed_of(*facts) for facts in itertools.product(range(3), repeat=3)}
    assert len(seeds) == 27
    assert all(0 <= seed < 2**63 for seed in seeds)
