"""Batches of random transitions, for tests of learners."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.environments.spec import Array, ArraySpec, ContinuousAction, EnvironmentSpec
from ropewalk.rl.replay.batch import Batch, SampleInfo

SPEC = EnvironmentSpec(ArraySpec((3,)), ContinuousAction((-2.0, 0.0), (2.0, 1.0)))
"""Two actions with other bounds than the canonical ones."""


def random_batch(spec: EnvironmentSpec = SPEC, size: int = 32, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    columns: dict[str, Array] = {}
    for name, array in spec.observation_columns.items():
        for prefix in ("", "next_"):
            columns[prefix + name] = rng.normal(size=(size, *array.shape)).astype(array.dtype)
    action = spec.action
    assert isinstance(action, ContinuousAction)
    columns["action"] = rng.uniform(action.low, action.high, (size, len(action.low))).astype(np.float32)
    columns["reward"] = rng.normal(size=size).astype(np.float32)
    columns["discount"] = np.where(rng.random(size) < 0.2, 0, 0.99).astype(np.float32)
    return Batch(columns, sample_info(size))


def sample_info(size: int) -> SampleInfo:
    keys = np.arange(size)
    zeros = np.zeros(size, np.int64)
    return SampleInfo(keys, np.full(size, 1 / size), np.ones(size), zeros + 1, zeros, keys, size, tuple(["2#1"] * size))
