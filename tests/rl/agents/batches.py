"""Random batches for learners, as replay would give them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.batch import Batch, SampleInfo


def batch_of(columns: Mapping[str, Array], rng: np.random.Generator, table_size: int = 1_000) -> Batch:
    """A batch of those columns, drawn by priority."""
    num = len(next(iter(columns.values())))
    priority = rng.exponential(size=num)
    zeros = np.zeros(num, np.int64)
    info = SampleInfo(
        keys=np.arange(100, 100 + num),
        probability=priority / priority.sum() / 50,
        priority=priority,
        times_sampled=zeros + 1,
        version=zeros,
        inserted=zeros,
        table_size=table_size,
        run_ids=("0#0",) * num,
    )
    return Batch({name: read_only(array) for name, array in columns.items()}, info)


def read_only(array: Array) -> Array:
    """As arrays in shared memory are."""
    array = np.array(array)
    array.flags.writeable = False
    return array


def transitions(seed: int, *, num: int = 16, size: int = 4, actions: int = 3) -> Batch:
    """Transitions of `num` items with observations of `size` numbers; some of them terminated."""
    rng = np.random.default_rng(seed)
    return batch_of(
        {
            "observation": rng.standard_normal((num, size), np.float32),
            "action": rng.integers(actions, size=num),
            "reward": rng.normal(scale=2.0, size=num).astype(np.float32),
            "discount": (0.97 * (rng.random(num) > 0.2)).astype(np.float32),
            "next_observation": rng.standard_normal((num, size), np.float32),
        },
        rng,
    )


def sequences(
    seed: int, *, num: int = 6, length: int = 12, size: int = 4, actions: int = 3, units: int = 5, ends: float = 0.2
) -> Batch:
    """Sequences in which episodes end, by termination or truncation, as `SequenceAdder` makes them of such blocks."""
    rng = np.random.default_rng(seed)
    ended = rng.random((num, length)) < ends
    mask = np.ones((num, length), bool)
    for step in range(1, length):
        mask[:, step] = ~(ended[:, step - 1] & mask[:, step - 1])
    ended &= mask
    terminated = ended & (rng.random((num, length)) < 0.5)
    first = np.zeros((num, length), bool)
    first[:, 1:] = ~mask[:, :-1]
    first[:, 0] = rng.random(num) < 0.3
    return batch_of(
        {
            "observation": rng.standard_normal((num, length, size), np.float32),
            "first": first,
            "action": rng.integers(actions, size=(num, length)),
            "reward": (rng.normal(scale=2.0, size=(num, length)) * mask).astype(np.float32),
            "terminated": terminated,
            "truncated": ended & ~terminated,
            "mask": mask,
            "state.hidden": rng.standard_normal((num, units), np.float32),
            "state.cell": rng.standard_normal((num, units), np.float32),
        },
        rng,
    )


def changed(batch: Batch, **columns: Array) -> Batch:
    """The batch with other columns in place of its own."""
    return Batch({**batch.columns, **columns}, batch.info)
