"""`Batch`: items that were sampled from a table, as one array per column; and how batches are cut and joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array


@dataclass(frozen=True, slots=True)
class SampleInfo:
    """Facts of each sampled item, at the moment of the draw. All arrays have shape (B,).

    Attributes:
        keys: keys of the items, int64: for `update_priorities`.
        probability: probability of drawing this item, float64.
        priority: priority of the item, float64.
        times_sampled: how many times the item was sampled, this batch included, int64.
        version: version of the weights that chose the item's actions, int64; staleness is the learner's version less
            this.
        inserted: number of the item's insertion in its table, int64.
        table_size: number of items in the table.
        run_ids: which life of which actor made each item.
    """

    keys: NDArray[np.int64]
    probability: NDArray[np.float64]
    priority: NDArray[np.float64]
    times_sampled: NDArray[np.int64]
    version: NDArray[np.int64]
    inserted: NDArray[np.int64]
    table_size: int
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """B items.

    Attributes:
        columns: arrays by name, shape (B, ...), or (B, L, ...) for columns of L rows per item.
        info: facts of the items.
    """

    columns: Mapping[str, Array]
    info: SampleInfo

    def __len__(self) -> int:
        return len(self.info.keys)

    def take(self, rows: NDArray[np.int64] | slice) -> Batch:
        """Return the items at these positions, in this order; those of a slice share the memory of the batch."""
        info = self.info
        positions: list[int] = np.arange(len(self))[rows].tolist()
        return Batch(
            {name: array[rows] for name, array in self.columns.items()},
            SampleInfo(
                keys=info.keys[rows],
                probability=info.probability[rows],
                priority=info.priority[rows],
                times_sampled=info.times_sampled[rows],
                version=info.version[rows],
                inserted=info.inserted[rows],
                table_size=info.table_size,
                run_ids=tuple(info.run_ids[row] for row in positions),
            ),
        )


def joined(batches: Sequence[Batch]) -> Batch:
    """Return one batch of all items, in order; the facts of the table are those of the last one.

    A single batch is returned as it is.
    """
    if len(batches) == 1:
        return batches[0]
    columns = {name: np.concatenate([batch.columns[name] for batch in batches]) for name in batches[0].columns}
    infos = [batch.info for batch in batches]
    info = SampleInfo(
        np.concatenate([info.keys for info in infos]),
        np.concatenate([info.probability for info in infos]),
        np.concatenate([info.priority for info in infos]),
        np.concatenate([info.times_sampled for info in infos]),
        np.concatenate([info.version for info in infos]),
        np.concatenate([info.inserted for info in infos]),
        infos[-1].table_size,
        tuple(run_id for info in infos for run_id in info.run_ids),
    )
    return Batch(columns, info)


__all__ = ["Batch", "SampleInfo", "joined"]
