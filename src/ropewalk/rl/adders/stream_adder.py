"""`StreamAdder`: what the adders share: the place within the stream, the checks, and the names of columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import NotFinite
from ropewalk.rl.adders.adder import Adder
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.insertion import Insertion, NewItems

PriorityFunction: TypeAlias = Callable[[Mapping[str, Array]], NDArray[np.float64]]
"""Takes columns of the new items, without observations, shape (items, ...) each; returns their priorities, (items,)."""

_STANDARD = frozenset(["first", "action", "reward", "terminated", "truncated", "mask"])


@dataclass(frozen=True, slots=True)
class Added:
    """The rows and items that one block becomes; see `Insertion` for the fields."""

    rows: Mapping[str, Array]
    items: Mapping[str, NewItems]
    keep: Mapping[str, int] = field(default_factory=dict[str, int])


class StreamAdder(Adder):
    """Gives each run id a stream, whose insertions and steps are numbered from 0.

    Subclasses number the rows of their columns by `flat_rows`: the row of step t of environment e is t * N + e, where t
    counts all steps of the stream.
    """

    def __init__(self) -> None:
        self._run_id: str | None = None
        self._sequence = 0
        self._next_block = 0
        self._num_steps = 0
        self._num_envs = 0

    def add(self, block: Block) -> Insertion:
        if block.run_id != self._run_id:
            self._run_id, self._sequence, self._num_steps = block.run_id, 0, 0
            self._next_block, self._num_envs = block.number, block.num_envs
            self._begin(block)
        self._check(block)
        added = self._add(block)
        insertion = Insertion(
            block.run_id, self._sequence, added.rows, added.items, added.keep, version=block.version, steps=block.steps
        )
        self._sequence += 1
        self._next_block += 1
        self._num_steps += block.num_steps
        return insertion

    @abstractmethod
    def _begin(self, block: Block) -> None:
        """Forget earlier blocks: this is the first one of a stream."""

    @abstractmethod
    def _add(self, block: Block) -> Added:
        """Return what the block becomes; `_num_steps` steps of the stream were before it."""

    def _check(self, block: Block) -> None:
        if (block.number, block.num_envs) != (self._next_block, self._num_envs):
            raise ValueError(
                f"block {block.number} of run {block.run_id} with {block.num_envs} environments came where block "
                f"{self._next_block} with {self._num_envs} was expected; give an adder all blocks of a run id in "
                "order, or begin a new run id"
            )
        check_finite(block, self._num_steps)


def observation_names(block: Block) -> list[str]:
    """Names of the columns of the observation."""
    return [name for name in block.columns if name.partition(".")[0] == "observation"]


def extra_names(block: Block) -> list[str]:
    """Names of what the policy returned beside the action."""
    return [
        name
        for name in block.columns
        if name not in _STANDARD and name.partition(".")[0] not in ("observation", "state")
    ]


def state_names(block: Block) -> list[str]:
    """Names of the columns of the recurrent state."""
    return [name for name in block.columns if name.partition(".")[0] == "state"]


def flat_rows(array: Array) -> Array:
    """Return an array of shape [T, N, ...] as rows, shape (T * N, ...)."""
    return array.reshape(-1, *array.shape[2:])


def window_rows(steps: NDArray[np.int64], envs: NDArray[np.int64], length: int, num_envs: int) -> NDArray[np.int64]:
    """Return the rows of `length` steps from each of some steps on, shape (items, length)."""
    return (steps[:, None] + np.arange(length)) * num_envs + envs[:, None]


def check_finite(block: Block, first_step: int = 0) -> None:
    """Refuse a block with rewards or observations that are not finite.

    Args:
        block: the block to check.
        first_step: number of its first step within its run id, for the message.

    Raises:
        NotFinite: names the environment, the step and the column of the first such value.
    """
    for name, array in _checked(block):
        if np.isfinite(array).all():
            continue
        step, env = (int(each) for each in np.argwhere(~np.isfinite(array))[0][:2])
        bad = array[step, env]
        value = bad[~np.isfinite(bad)].flat[0] if bad.ndim else bad
        raise NotFinite(
            f"{name} of environment {env} is {value} at step {first_step + step} of run {block.run_id} (step {step} of "
            f"block {block.number}); the block was not added to replay. Look at this environment or clip what it gives",
            column=name,
            run_id=block.run_id,
            env=env,
            step=first_step + step,
        )


def _checked(block: Block) -> Iterable[tuple[str, Array]]:
    for name, array in block.columns.items():
        if is_checked(name, array):
            yield name, array


def is_checked(name: str, array: Array) -> bool:
    """Return whether a column must hold finite values only."""
    return array.dtype.kind in "fc" and (name == "reward" or name.partition(".")[0] == "observation")


__all__ = [
    "Added",
    "PriorityFunction",
    "StreamAdder",
    "check_finite",
    "extra_names",
    "flat_rows",
    "is_checked",
    "observation_names",
    "state_names",
    "window_rows",
]
