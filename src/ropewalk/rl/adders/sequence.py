"""`SequenceAdder`: overlapping sequences of fixed length with the recurrent state at their first step (R2D2).

steps       0 . . . . . . . 8 . . . . . . . 16 . . . . . . . 24        length 16, period 8
items       [---------------------------]
                            [----------------------------]
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
    state_names,
    window_rows,
)
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.insertion import NewItems, RowsOf


class SequenceAdder(StreamAdder):
    """Makes every `length` steps of an environment an item, one every `period` steps.

    Columns of the items: observation, first, action, reward, terminated, truncated, mask and extras, with `length` rows
    each, and state.<name>, one row: the recurrent state before the first step, before any reset by first[0]. A sequence
    may contain ends of episodes, as in SEED RL: `first` says where the state is reset, `mask` which steps do not count.
    Sequences that are not complete when a run id ends are dropped. (Kapturowski et al., R2D2, 2019, section 2.3)

    The recurrent state is known at the first step of each block, so sequences have to begin there: with a recurrent
    policy, `period` must be a multiple of the blocks' number of steps T.

    Args:
        length: steps of a sequence, at least 2; with burn-in, those included.
        period: steps from the begin of a sequence to that of the next one; less than `length` makes them overlap.
        table: name of the table of the items.
        priorities: computes the priorities of new items from all columns but observations, shape (items, length, ...)
            or (items, ...); None gives them the largest priority in the table.

    Raises:
        ValueError: `length` or `period` is out of its range; or, when a block is added, a sequence would have to begin
            at a step at which the recurrent state is not known.
    """

    def __init__(
        self, length: int, period: int, table: str = "replay", *, priorities: PriorityFunction | None = None
    ) -> None:
        check_number("length", length, Integral, "a whole number", least=2, required=True)
        check_number("period", period, Integral, "a whole number", least=1, required=True)
        super().__init__()
        self._length, self._period, self._table, self._priorities = length, period, table, priorities
        self._next_start = 0
        """First step of the first sequence that is not an item yet."""
        self._carried: dict[str, Array] = {}
        """Steps from `_next_start` on and states of unfinished sequences, if `priorities` need them."""

    def __repr__(self) -> str:
        return f"<SequenceAdder length={self._length} period={self._period} table={self._table!r}>"

    def _begin(self, block: Block) -> None:
        del block
        self._next_start, self._carried = 0, {}

    def _add(self, block: Block) -> Added:
        self._check_starts(block)
        end = self._num_steps + block.num_steps
        starts = np.arange(self._next_start, end - self._length + 1, self._period, dtype=np.int64)
        if len(starts):
            self._next_start = int(starts[-1]) + self._period
        steps = [*observation_names(block), "first", *self._step_names(block)]
        rows = {name: flat_rows(block.columns[name][: block.num_steps]) for name in steps}
        begins = self._num_steps % self._period == 0  # so its state is that of a sequence
        rows |= {name: block.columns[name] for name in state_names(block) if begins}
        items = self._items(block, steps, starts)
        keep = dict.fromkeys(steps, min(self._next_start, end) * block.num_envs)
        keep |= dict.fromkeys(state_names(block), self._kept_states(end) * block.num_envs)
        return Added(rows, {self._table: items}, keep)

    def _check_starts(self, block: Block) -> None:
        start = (self._num_steps // self._period + 1) * self._period
        if state_names(block) and start < self._num_steps + block.num_steps:
            raise ValueError(
                f"a sequence would begin at step {start} of run {block.run_id}, in the middle of a block of "
                f"{block.num_steps} steps, where the recurrent state is not known; make the period ({self._period}) a "
                "multiple of the steps of a block"
            )

    def _kept_states(self, end: int) -> int:
        """Number of the first stored state that later sequences need."""
        return min(self._next_start // self._period, -(-end // self._period))

    def _step_names(self, block: Block) -> list[str]:
        return ["action", "reward", "terminated", "truncated", "mask", *extra_names(block)]

    def _items(self, block: Block, steps: list[str], starts: NDArray[np.int64]) -> NewItems:
        num_envs = block.num_envs
        firsts, envs = np.repeat(starts, num_envs), np.tile(np.arange(num_envs, dtype=np.int64), len(starts))
        rows = window_rows(firsts, envs, self._length, num_envs)
        columns = {name: RowsOf(name, rows) for name in steps}
        state_rows = firsts // self._period * num_envs + envs
        columns |= {name: RowsOf(name, state_rows) for name in state_names(block)}
        return NewItems(columns, self._priorities_of(block, rows, state_rows) if self._priorities else None)

    def _priorities_of(
        self, block: Block, rows: NDArray[np.int64], state_rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The priorities of items, whose columns are taken from this block and from steps that were kept for that."""
        assert self._priorities
        columns = {
            name: flat_rows(block.columns[name][: block.num_steps]) for name in ("first", *self._step_names(block))
        }
        begins = self._num_steps % self._period == 0
        columns |= {name: block.columns[name] if begins else block.columns[name][:0] for name in state_names(block)}
        if self._carried:
            columns = {name: np.concatenate([self._carried[name], array]) for name, array in columns.items()}
        end = self._num_steps + block.num_steps
        taken: dict[str, Array] = {}
        for name, array in columns.items():
            of_state = name.partition(".")[0] == "state"
            last = -(-end // self._period) if of_state else end
            first_row = last * block.num_envs - len(array)
            taken[name] = array[(state_rows if of_state else rows) - first_row]
            kept = (self._kept_states(end) if of_state else min(self._next_start, end)) * block.num_envs
            self._carried[name] = array[max(0, kept - first_row) :].copy()
        return self._priorities(taken)


__all__ = ["SequenceAdder"]
