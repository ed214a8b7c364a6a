"""Made-up experience, block by block, and what replay would store of it, both one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.insertion import Insertion


@dataclass
class Step:
    """One step of one environment. `observation` is acted on; the one of the next step is what it led to."""

    observation: float
    first: bool
    action: int
    reward: float
    terminated: bool
    truncated: bool
    mask: bool
    value: float
    state: float


def steps_of_env(rng: np.random.Generator, num_steps: int, env: int) -> list[Step]:
    """Steps with episodes of 1 to 6 steps, and one more, whose observation the last of them leads to."""
    steps: list[Step] = []
    left, first, mask = int(rng.integers(1, 7)), True, True
    for t in range(num_steps + 1):
        ends = mask and left == 1
        terminated = ends and bool(rng.integers(2))
        reward = float(np.float32(rng.normal())) if mask else 0.0
        steps.append(
            Step(t + env / 8, first, t % 5, reward, terminated, ends and not terminated, mask, rng.normal(), 100.0 + t)
        )
        if ends:
            mask, first = False, False
        elif not mask:
            mask, first, left = True, True, int(rng.integers(1, 7))
        else:
            left, first = left - 1, False
    return steps


def blocks_of(envs: Sequence[Sequence[Step]], lengths: Sequence[int], run_id: str = "0#0") -> list[Block]:
    """The steps of environments as blocks of these lengths."""
    blocks: list[Block] = []
    at = 0
    for number, length in enumerate(lengths):

        def column(name: str, dtype: Any, more: int = 0, at: int = at, length: int = length) -> Any:
            return np.array([[getattr(env[at + t], name) for env in envs] for t in range(length + more)], dtype)

        columns = {
            "observation.image": column("observation", np.float32, 1)[..., None] * np.ones(3, np.float32),
            "observation.speed": column("observation", np.float64, 1),
            "first": column("first", bool, 1),
            "action": column("action", np.int64),
            "reward": column("reward", np.float32),
            "terminated": column("terminated", bool),
            "truncated": column("truncated", bool),
            "mask": column("mask", bool),
            "value": column("value", np.float32),
            "state.h": column("state", np.float32)[0],
        }
        blocks.append(Block(columns, run_id, number, version=number, steps=int(columns["mask"].sum())))
        at += length
    return blocks


def experience(seed: int, num_envs: int, lengths: Sequence[int]) -> tuple[list[list[Step]], list[Block]]:
    """Steps of some environments and the blocks that they make."""
    rng = np.random.default_rng(seed)
    envs = [steps_of_env(rng, sum(lengths), env) for env in range(num_envs)]
    return envs, blocks_of(envs, lengths)


class StoredStream:
    """Rows of one stream, from which items are read as replay reads them, and which are dropped where it may do so."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Array | None]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.num = 0

    def add(self, insertion: Insertion, table: str = "replay") -> list[dict[str, Any]]:
        """Store an insertion and return its items."""
        assert insertion.sequence == self.num
        self.num += 1
        for name, rows in insertion.rows.items():
            self.rows.setdefault(name, []).extend(rows.copy())
            self.shapes[name] = rows.shape[1:]
        new = insertion.items[table]
        read = {name: self._read(each.column, each.rows) for name, each in new.columns.items()}
        for name, rows in self.rows.items():
            kept = insertion.keep.get(name, len(rows))
            assert kept <= len(rows)
            rows[:kept] = [None] * kept
        return [{name: array[index] for name, array in read.items()} for index in range(len(new))]

    def _read(self, column: str, rows: NDArray[np.int64]) -> Array:
        named = [self.rows[column][row] for row in rows.flat]
        assert all(row is not None for row in named), f"{column} was not kept"
        return np.array(named).reshape(*rows.shape, *self.shapes[column])


def sorted_by(items: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return sorted(items, key=lambda item: tuple(np.asarray(item[name]).flat[0] for name in names))


def assert_equal_items(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6, err_msg=name)
