from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ropewalk.rl.agents.ppo import PPO
from ropewalk.rl.learners.minibatches import minibatches
from ropewalk.rl.learners.unrolls import Unrolls, unrolls_of
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from tests.rl.agents.experience import DISCRETE, random_batch


def unrolls(*, memory: bool, envs: int = 3) -> Unrolls:
    batch = random_batch(DISCRETE, 0, steps=8, envs=envs, state={"hidden": 5, "cell": 5} if memory else None)
    return unrolls_of(batch.columns, torch.device("cpu"))


def numbers(whole: Unrolls) -> torch.Tensor:
    """A different number for each step."""
    return torch.arange(whole.mask.numel()).reshape(whole.mask.shape)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("num", [1, 4, 1000])
def test_each_step_that_counts_is_in_one_minibatch(memory: bool, num: int) -> None:
    whole = unrolls(memory=memory)
    parts = [part.of(numbers(whole)) for part in minibatches(whole, num, np.random.default_rng(0))]
    assert sorted(torch.cat(parts).tolist()) == numbers(whole)[whole.mask].tolist()
    assert len(parts) == min(num, whole.mask.shape[1] if memory else int(whole.mask.sum()))
    if not memory:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_networks_with_memory_learn_from_whole_environments() -> None:
    whole = unrolls(memory=True)
    for part in minibatches(whole, 3, np.random.default_rng(0)):
        columns = part.of(numbers(whole)) % whole.mask.shape[1]
        envs = columns.unique()
        assert len(envs) == 2
        assert len(columns) == int(whole.mask[:, envs].sum())


def test_another_order_is_drawn_for_each_epoch() -> None:
    whole, rng = unrolls(memory=False), np.random.default_rng(0)
    orders = [torch.cat([part.of(numbers(whole)) for part in minibatches(whole, 2, rng)]).tolist() for _ in range(2)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("memory", [False, True])
def test_a_part_is_evaluated_as_in_the_whole(memory: bool) -> None:
    whole = unrolls(memory=memory)
    model = PPO().make_learner(DISCRETE, LSTM(MLP((8,)), 5) if memory else None, seed=0).model
    params, values, _ = model.unroll(whole.observation, whole.first, whole.state)
    for part in minibatches(whole, 3, np.random.default_rng(0)):
        some_params, some_values = part.evaluate(model)
        torch.testing.assert_close(some_params, part.of(params[:-1]))
        torch.testing.assert_close(some_values, part.of(values[:-1]))


def test_an_environment_without_a_step_that_counts_is_left_out() -> None:
    whole = unrolls(memory=True)
    mask = whole.mask.clone()
    mask[:, 1] = False
    parts = list(minibatches(dataclasses.replace(whole, mask=mask), 100, np.random.default_rng(0)))
    assert sorted(int(part.index) for part in parts) == [0, 2, 3, 4, 5]
