"""`NStepAdder`: transitions over n steps, for methods that learn from single transitions (DQN, SAC, TD3).

step          t        t+1       t+2 = t+n-1     t+3
observation   x_t      x_t+1     x_t+2           x_t+3 = next_observation
reward        r_t  + g r_t+1 + g^2 r_t+2                             g: discount
discount      g^3                                0 if the episode was terminated at t+2
"""

from __future__ import annotations

from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from ropewalk.argument_kinds import check_number
from ropewalk.rl.adders.stream_adder import (
    Added,
    PriorityFunction,
    StreamAdder,
    extra_names,
    flat_rows,
    observation_names,
)
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.insertion import NewItems, RowsOf


class NStepAdder(StreamAdder):
    """Makes each step an item, with the rewards of the next `n` steps.

    Columns of the items, where m is `n`, or the number of steps to the end of the episode if that is smaller:

        observation, action, extras     of step t
        reward                          sum over k < m of discount^k * reward of step t+k, float32
        discount                        discount^m, or 0 if the episode was terminated at step t+m-1, float32: the only
                                        factor by which the bootstrap value at `next_observation` is multiplied
        next_observation                what step t+m-1 led to; at the end of an episode its last observation

    A truncated episode keeps its discount, since it would have gone on from its last observation. Steps that only began
    an episode make no items. Steps whose n steps are not complete at the end of a block become items with later blocks;
    when a run id ends, they are dropped. Observations are stored once. (Sutton and Barto, 2018, section 7.1)

    Args:
        n: number of steps, at least 1.
        discount: factor for each step, 0 to 1.
        table: name of the table of the items.
        priorities: computes the priorities of new items from action, reward, discount and extras; None gives them the
            largest priority in the table.

    Raises:
        ValueError: `n` or `discount` is out of its range.
    """

    def __init__(
        self, n: int, discount: float, table: str = "replay", *, priorities: PriorityFunction | None = None
    ) -> None:
        check_number("n", n, Integral, "a whole number", least=1, required=True)
        if not 0 <= discount <= 1:
            raise ValueError(f"discount must be between 0 and 1, not {discount}")
        super().__init__()
        self._n, self._discount, self._table, self._priorities = n, discount, table, priorities
        self._carried: dict[str, Array] = {}
        """The last steps of earlier blocks, at most n-1, by column; "open": whether a step is not an item yet."""
        self._num_items = 0

    def __repr__(self) -> str:
        return f"<NStepAdder n={self._n} discount={self._discount} table={self._table!r}>"

    def _begin(self, block: Block) -> None:
        del block
        self._carried, self._num_items = {}, 0

    def _add(self, block: Block) -> Added:
        steps = self._steps_with_carried(block)
        first_step = self._num_steps + block.num_steps - len(steps["reward"])
        reward, discount, length, complete = self._windows(steps)
        ready = complete & steps["open"].astype(bool)
        starts, envs = np.nonzero(ready)
        steps["open"] = steps["open"].astype(bool) & ~ready
        rows = (first_step + starts) * block.num_envs + envs
        next_rows = rows + length[starts, envs] * block.num_envs
        new = {"reward": reward[starts, envs].astype(np.float32), "discount": discount[starts, envs].astype(np.float32)}
        taken = {name: steps[name][starts, envs] for name in self._names_for_priorities(block)}
        items = self._items(block, rows, next_rows, new | taken)
        self._num_items += len(rows)
        num_carried = min(self._n - 1, len(steps["reward"]))
        self._carried = {name: array[len(array) - num_carried :].copy() for name, array in steps.items()}
        kept = (self._num_steps + block.num_steps - num_carried) * block.num_envs
        stored = [*observation_names(block), "action", *extra_names(block)]
        return Added(self._rows(block) | new, {self._table: items}, dict.fromkeys(stored, kept))

    def _names_for_priorities(self, block: Block) -> list[str]:
        return ["action", *extra_names(block)] if self._priorities else []

    def _steps_with_carried(self, block: Block) -> dict[str, Array]:
        """The columns that windows are computed from, with the carried steps before those of the block."""
        columns = {name: block.columns[name] for name in ("reward", "terminated", "truncated")}
        columns |= {name: block.columns[name] for name in self._names_for_priorities(block)}
        columns["open"] = block.columns["mask"]
        if not self._carried:
            return columns
        return {name: np.concatenate([self._carried[name], array]) for name, array in columns.items()}

    def _windows(
        self, steps: dict[str, Array]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
        """Reward, discount, length and completeness of the window from each step on, shape [steps, N] each."""
        rewards, terminated = steps["reward"].astype(np.float64), steps["terminated"].astype(bool)
        ended = terminated | steps["truncated"].astype(bool)
        num = len(rewards)
        total, factor = np.zeros(rewards.shape), np.ones(rewards.shape)
        length, goes_on = np.zeros(rewards.shape, np.int64), np.ones(rewards.shape, bool)
        missing = np.zeros(rewards.shape, bool)
        for k in range(self._n):
            missing[max(0, num - k) :] |= goes_on[max(0, num - k) :]
            inside = slice(0, max(0, num - k))
            now = goes_on[inside]
            total[inside] += np.where(now, factor[inside] * rewards[k:], 0.0)
            factor[inside] *= np.where(now, self._discount * ~terminated[k:], 1.0)
            length[inside] += now
            goes_on[inside] = now & ~ended[k:]
        return total, factor, length, ~missing

    def _rows(self, block: Block) -> dict[str, Array]:
        """The block's steps as rows. Row 0 of an observation is row T of the block before, and stored already."""
        skipped = 1 if self._num_steps else 0
        rows = {name: flat_rows(block.columns[name][skipped:]) for name in observation_names(block)}
        return rows | {name: flat_rows(block.columns[name]) for name in ("action", *extra_names(block))}

    def _items(
        self, block: Block, rows: NDArray[np.int64], next_rows: NDArray[np.int64], values: dict[str, Array]
    ) -> NewItems:
        columns = {name: RowsOf(name, rows) for name in (*observation_names(block), "action", *extra_names(block))}
        columns |= {f"next_{name}": RowsOf(name, next_rows) for name in observation_names(block)}
        own = np.arange(self._num_items, self._num_items + len(rows), dtype=np.int64)
        columns |= {name: RowsOf(name, own) for name in ("reward", "discount")}
        return NewItems(columns, self._priorities(values) if self._priorities else None)


__all__ = ["NStepAdder"]
