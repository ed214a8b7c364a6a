from __future__ import annotations

import numpy as np
import torch

from ropewalk.rl.learners.unrolls import time_major, unrolls_of
from tests.rl.agents.experience import DISCRETE, random_batch


def test_blocks_lie_side_by_side_with_time_first() -> None:
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    moved = time_major(array)
    assert moved.shape == (3, 8, 5)
    for block in range(2):
        for env in range(4):
            assert (moved[:, 4 * block + env] == array[block, :, env]).all()


def test_observations_may_have_no_entries() -> None:
    """As those of a bandit, of which nothing is seen."""
    assert time_major(np.zeros((2, 3, 4, 0))).shape == (3, 8, 0)


def test_all_columns_become_tensors_of_their_own_memory() -> None:
    batch = random_batch(DISCRETE, 0, blocks=2, steps=6, envs=3, state={"hidden": 5})
    unrolls = unrolls_of(batch.columns, torch.device("cpu"))
    assert isinstance(unrolls.observation, torch.Tensor)
    assert (unrolls.observation.shape, unrolls.action.shape) == ((7, 6, 3), (6, 6))
    assert (unrolls.mask.dtype, unrolls.action.dtype) == (torch.bool, torch.int64)
    assert (unrolls.state["hidden"].numpy() == batch.columns["state.hidden"].reshape(6, 5)).all()
    unrolls.observation.zero_()
    unrolls.state["hidden"].zero_()
    assert batch.columns["observation"].any()


def test_observations_of_several_names_stay_apart() -> None:
    batch = random_batch(DISCRETE, 0)
    columns = {name: array for name, array in batch.columns.items() if name != "observation"}
    columns["observation.a"] = batch.columns["observation"]
    columns["observation.b"] = batch.columns["observation"][..., 0]
    observation = unrolls_of(columns, torch.device("cpu")).observation
    assert isinstance(observation, dict)
    assert {name: tuple(tensor.shape) for name, tensor in observation.items()} == {"a": (7, 6, 3), "b": (7, 6)}
