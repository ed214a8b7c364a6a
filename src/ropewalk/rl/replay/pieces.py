"""Batches as pieces: joined, and cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ropewalk.rl.replay.batch import Batch, SampleInfo


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


def part_of(batch: Batch, first: int, last: int) -> Batch:
    """Return items `first` to `last`, without `last`, over the memory of the batch."""
    info, part = batch.info, slice(first, last)
    return Batch(
        {name: array[part] for name, array in batch.columns.items()},
        replace(
            info,
            keys=info.keys[part],
            probability=info.probability[part],
            priority=info.priority[part],
            times_sampled=info.times_sampled[part],
            version=info.version[part],
            inserted=info.inserted[part],
            run_ids=info.run_ids[part],
        ),
    )


__all__ = ["joined", "part_of"]
