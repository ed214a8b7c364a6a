"""Mini-batches that a process reads by itself: with shards each replica gets what it would have cut from the whole."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline import trace
from ropewalk.training.own_data import DataShard, OwnData

Pair = tuple[Tensor, Tensor]
ALONE = DataShard(0, 1, 4)


def pair(step: int) -> Pair:
    samples = torch.arange(12.0).reshape(12, 1) + 100 * step
    return samples, samples[:, 0].long()


def whole(first_step: int) -> Iterator[Pair]:
    return map(pair, count(first_step))


def without_step() -> Iterator[Pair]:
    return map(pair, count())


def shards(first_step: int, shard: DataShard) -> Iterator[Pair]:
    mine = range(shard.replica, shard.micro_batches, shard.replicas)
    for x, y in whole(first_step):
        yield (
            torch.cat([x.chunk(shard.micro_batches)[index] for index in mine]),
            torch.cat([y.chunk(shard.micro_batches)[index] for index in mine]),
        )


def own(make: Any, shard: DataShard = ALONE, seed: int = 0) -> OwnData:
    return OwnData(make, trace(nn.Sequential(nn.Linear(1, 1)), torch.zeros(3, 1)), shard, seed)


@pytest.mark.parametrize("make", [shards, without_step])
@pytest.mark.parametrize("replica", [0, 1])
def test_a_replica_gets_the_same_samples_however_its_data_is_made(make: Any, replica: int) -> None:
    shard = DataShard(replica, 2, 4)
    one, other = own(make, shard), own(whole, shard)
    for step in (0, 1, 5, 2):  # it also goes back, to the step of a snapshot
        made, expected = one.pieces(step), other.pieces(step)
        for index in (replica, replica + 2):
            assert torch.equal(made[index].labels, expected[index].labels)
            assert made[index].labels.tolist() == [100 * step + 3 * index + each for each in range(3)]
            assert made[index].num_samples == 3


def from_place(first: int, place: str) -> Iterator[Pair]:
    assert place == "here"
    return whole(first)


def from_place_without_step(place: str) -> Iterator[Pair]:
    assert place == "here"
    return without_step()


@pytest.mark.parametrize("make", [from_place, from_place_without_step])
def test_a_function_whose_other_arguments_are_given_already_gets_the_step_if_there_is_a_place_for_it(make: Any) -> None:
    # Whatever argument there was, it was called with the step: "got multiple values for argument 'place'".
    assert torch.equal(own(functools.partial(make, place="here")).pieces(3)[1].labels, pair(3)[1][3:6])


def test_shards_that_are_uneven_are_refused() -> None:
    with pytest.raises(PlanInvalid, match="4 micro-batches cannot be shared out evenly among 3 replicas"):
        own(shards, DataShard(0, 3, 4))
    own(whole, DataShard(0, 3, 4))


def shuffled() -> Iterator[Pair]:
    """Draws from the three generators that nobody has to make."""
    samples = torch.arange(12.0).reshape(12, 1)
    while True:
        for (x,) in DataLoader(TensorDataset(samples), batch_size=4, shuffle=True):
            x = x + 100 * random.randrange(9) + 1000 * np.random.randint(9)
            yield x, x[:, 0].long()


def test_data_that_draws_random_numbers_is_the_same_in_every_process_and_after_going_back() -> None:
    one, other = own(shuffled), own(shuffled)
    wanted = [one.batch(step)[0] for step in range(8)]
    _ = random.random(), np.random.random(), torch.rand(1)  # the other process has drawn something else meanwhile
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    found = [other.batch(step)[0] for step in (0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7)]
    assert (random.getstate(), str(np.random.get_state())) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert [x.tolist() for x in found[:4]] == [x.tolist() for x in wanted[:4]]
    assert [x.tolist() for x in found[4:]] == [x.tolist() for x in wanted[1:]]
    assert own(shuffled, seed=1).batch(0)[0].tolist() != wanted[0].tolist()


def test_what_data_gives_wrongly_is_told_with_its_step() -> None:
    def two_batches() -> Any:
        return [pair(0), pair(1)]

    def nothing(first_step: int) -> Any:
        print(first_step)

    def at_once(first_step: int) -> Any:
        raise StopIteration  # which reached the user without a word

    with pytest.raises(ValueError, match=r"the data has ended: .*two_batches gave no mini-batch for step 2"):
        own(two_batches).pieces(2)
    with pytest.raises(ValueError, match=r"the data has ended: .*at_once gave no mini-batch for step 7"):
        own(at_once).pieces(7)
    with pytest.raises(
        TypeError, match=r"data yields pairs .*, but .*nothing returned NoneType; write it with `yield`"
    ):
        own(functools.partial(nothing)).pieces(0)
    with pytest.raises(ValueError, match=r"pairs \(x, y\), but in step 0 it gave a tensor of shape \(12, 1\)"):
        own(lambda: [pair(0)[0]]).pieces(0)
