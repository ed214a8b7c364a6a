"""Random blocks, as replay gives them to learners of blocks: episodes end in them by the rule NEXT_STEP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ropewalk.rl.environments.spec import Array, ArraySpec, ContinuousAction, DiscreteAction, EnvironmentSpec
from ropewalk.rl.learners.on_policy import OnPolicyLearner
from ropewalk.rl.learners.unrolls import time_major, unrolls_of
from ropewalk.rl.networks.distributions import for_spec
from ropewalk.rl.replay.batch import Batch, SampleInfo

DISCRETE = EnvironmentSpec(ArraySpec((3,)), DiscreteAction(2))
CONTINUOUS = EnvironmentSpec(ArraySpec((3,)), ContinuousAction((-1.0, -1.0), (1.0, 1.0)))


def random_batch(
    spec: EnvironmentSpec,
    seed: int,
    *,
    blocks: int = 2,
    steps: int = 6,
    envs: int = 3,
    versions: tuple[int, ...] | None = None,
    state: Mapping[str, int] | None = None,
) -> Batch:
    """Return blocks [B, T+1, N, ...] in which steps are terminated or truncated with probability 0.3.

    Args:
        spec: of the environment.
        seed: equal seeds give equal batches.
        blocks: B.
        steps: T.
        envs: N.
        versions: of the weights that acted, for each block; 0 by default.
        state: names and sizes of recurrent state.
    """
    rng = np.random.default_rng(seed)
    shape = (blocks, steps, envs)
    terminated, truncated, mask = (np.zeros(shape, np.bool_) for _ in range(3))
    first = np.zeros((blocks, steps + 1, envs), np.bool_)
    first[:, 0] = rng.random((blocks, envs)) < 0.3
    for step in range(steps):
        ended = terminated[:, step - 1] | truncated[:, step - 1] if step else np.zeros((blocks, envs), np.bool_)
        mask[:, step] = ~ended
        draw = rng.random((blocks, envs))
        terminated[:, step] = ~ended & (draw < 0.15)
        truncated[:, step] = ~ended & (draw > 0.85)
        first[:, step + 1] = ended
    action: Array = (
        rng.integers(0, spec.action.num, shape)
        if isinstance(spec.action, DiscreteAction)
        else rng.standard_normal((*shape, *spec.action_array.shape)).astype(np.float32)
    )
    columns: dict[str, Array] = {
        "observation": rng.standard_normal((blocks, steps + 1, envs, 3)).astype(np.float32),
        "first": first,
        "action": action,
        "reward": np.where(mask, rng.standard_normal(shape), 0.0).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "mask": mask,
        "log_prob": (-0.7 + 0.3 * rng.standard_normal(shape)).astype(np.float32),
    }
    for name, size in (state or {}).items():
        columns[f"state.{name}"] = rng.standard_normal((blocks, envs, size)).astype(np.float32)
    return Batch(columns, info_of(blocks, versions or (0,) * blocks))


def info_of(blocks: int, versions: tuple[int, ...]) -> SampleInfo:
    """Facts of blocks with the keys 100, 101 and so on, one from each group."""
    ones = np.ones(blocks)
    return SampleInfo(
        keys=np.arange(100, 100 + blocks),
        probability=ones,
        priority=ones,
        times_sampled=ones.astype(np.int64),
        version=np.array(versions, np.int64),
        inserted=np.arange(blocks),
        table_size=blocks,
        run_ids=tuple(f"{group}#0" for group in range(blocks)),
    )


def on_policy(batch: Batch, learner: OnPolicyLearner, spec: EnvironmentSpec) -> Batch:
    """Return the batch with the log-probabilities of the learner's own policy."""
    unrolls = unrolls_of(batch.columns, torch.device("cpu"))
    with torch.no_grad():
        params, _, _ = learner.model.unroll(unrolls.observation, unrolls.first, unrolls.state)
        log_prob = for_spec(spec.action).log_prob(params[:-1], unrolls.action).numpy()
    shape = batch.columns["reward"].shape
    columns = {**batch.columns, "log_prob": np.moveaxis(log_prob.reshape(shape[1], shape[0], shape[2]), 1, 0)}
    assert (time_major(columns["log_prob"]) == log_prob).all()
    return Batch(columns, batch.info)


def assert_close(actual: Any, expected: Any, atol: float = 2e-5, what: str = "") -> None:
    """Check that arrays differ by rounding alone."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol, err_msg=what)


__all__ = ["CONTINUOUS", "DISCRETE", "assert_close", "info_of", "on_policy", "random_batch"]
