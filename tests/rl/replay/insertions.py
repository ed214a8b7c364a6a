"""Short ways to make tables and insertions in tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf
from ropewalk.rl.replay.limiters import MinSize
from ropewalk.rl.replay.selectors import Fifo, UniformSelector
from ropewalk.rl.replay.table import ReplayTable


def table(name: str = "t", **changes: Any) -> ReplayTable:
    settings: dict[str, Any] = {"sampler": UniformSelector(), "remover": Fifo(), "max_size": 100, "limiter": MinSize(1)}
    return ReplayTable(name, **{**settings, **changes})


def numbered(
    sequence: int,
    num: int = 4,
    run_id: str = "0#0",
    table: str = "t",
    priorities: np.ndarray | None = None,
    version: int = 0,
) -> Insertion:
    """Insertion `sequence` of `num` rows each: column "x" counts the rows of the stream, and each row is one item."""
    rows = np.arange(sequence * num, (sequence + 1) * num)
    items = {table: NewItems({"x": RowsOf("x", rows)}, priorities)}
    return Insertion(run_id, sequence, {"x": rows.astype(np.float32)}, items, version=version)
