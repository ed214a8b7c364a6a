"""`EpisodeAdder`: whole episodes, for methods that learn from returns and for data sets."""

from __future__ import annotations

from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from ropewalk.argument_kinds import check_number
from ropewalk.rl.adders.stream_adder import (
    Added,
    StreamAdder,
    extra_names,
    flat_rows,
    observation_names,
    window_rows,
)
from ropewalk.rl.blocks import Block
from ropewalk.rl.replay.insertion import NewItems, RowsOf


class EpisodeAdder(StreamAdder):
    """Makes each episode an item, or several, if it has more than `length` steps.

    Columns of the items: observation with `length` + 1 rows, the last observation of the episode included; action,
    reward, terminated, truncated and extras with `length` rows; `mask`, shape (length,), False after the last step.
    What comes after the last step repeats it, which takes no memory. Episodes that have not ended when a run id ends
    are dropped, except for the items of `length` steps that are complete already.

    Args:
        length: steps of an item, at least 1.
        table: name of the table of the items.

    Raises:
        ValueError: `length` is below 1.
    """

    def __init__(self, length: int, table: str = "replay") -> None:
        check_number("length", length, Integral, "a whole number", least=1, required=True)
        super().__init__()
        self._length, self._table = length, table
        self._starts = np.zeros(0, np.int64)
        """For each environment the first step that is not in an item yet."""
        self._num_items = 0

    def __repr__(self) -> str:
        return f"<EpisodeAdder length={self._length} table={self._table!r}>"

    def _begin(self, block: Block) -> None:
        self._starts, self._num_items = np.zeros(block.num_envs, np.int64), 0

    def _add(self, block: Block) -> Added:
        starts, envs, lengths = self._pieces(block)
        order = np.lexsort((envs, starts + lengths))
        starts, envs, lengths = starts[order], envs[order], lengths[order]
        skipped = 1 if self._num_steps else 0
        rows = {name: flat_rows(block.columns[name][skipped:]) for name in observation_names(block)}
        steps = ["action", "reward", "terminated", "truncated", *extra_names(block)]
        rows |= {name: flat_rows(block.columns[name]) for name in steps}
        rows["mask"] = np.arange(self._length) < lengths[:, None]
        items = self._items(block, steps, starts, envs, lengths)
        end = self._num_steps + block.num_steps
        kept = min(end, int(self._starts.min())) * block.num_envs
        return Added(rows, {self._table: items}, dict.fromkeys([*observation_names(block), *steps], kept))

    def _items(
        self,
        block: Block,
        steps: list[str],
        starts: NDArray[np.int64],
        envs: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> NewItems:
        num_envs = block.num_envs
        within = window_rows(starts, envs, self._length + 1, num_envs)
        last = (starts + lengths) * num_envs + envs  # of the observation
        columns = {name: RowsOf(name, np.minimum(within, last[:, None])) for name in observation_names(block)}
        of_steps = np.minimum(within[:, :-1], last[:, None] - num_envs)
        columns |= {name: RowsOf(name, of_steps) for name in steps}
        own = np.arange(self._num_items, self._num_items + len(starts), dtype=np.int64)
        self._num_items += len(starts)
        return NewItems(columns | {"mask": RowsOf("mask", own)})

    def _pieces(self, block: Block) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """First step, environment and number of steps of each new item; moves the starts on."""
        found: list[tuple[int, int, int]] = []
        mask = block.columns["mask"].astype(bool)
        ended = (block.columns["terminated"].astype(bool) | block.columns["truncated"].astype(bool)) & mask
        for env in range(block.num_envs):
            for end in (*(np.nonzero(ended[:, env])[0] + self._num_steps + 1), -1):
                found += self._pieces_until(int(end), env, block)
        pieces = np.array(found, np.int64).reshape(-1, 3)
        return pieces[:, 0], pieces[:, 1], pieces[:, 2]

    def _pieces_until(self, end: int, env: int, block: Block) -> list[tuple[int, int, int]]:
        """The items of one environment up to the end of an episode, or, with -1, those that are full by now."""
        start, full = int(self._starts[env]), self._length
        last = end if end >= 0 else self._num_steps + block.num_steps
        found: list[tuple[int, int, int]] = []
        while start + full < last or (start + full == last and end < 0):
            found.append((start, env, full))
            start += full
        if end >= 0:
            if start < end:
                found.append((start, env, end - start))
            start = end + 1  # the step in between only begins the next episode
        self._starts[env] = start
        return found


__all__ = ["EpisodeAdder"]
