"""`UnrollAdder`: each block is one item, for methods that learn from whole unrolls (IMPALA, PPO)."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.adders.stream_adder import Added, StreamAdder
from ropewalk.rl.blocks import Block
from ropewalk.rl.replay.bundles import bundled, can_be_bundled
from ropewalk.rl.replay.insertion import NewItems, RowsOf


class UnrollAdder(StreamAdder):
    """Makes each block one item, each of whose columns is one row: the block's array, as observation [T+1, N, ...].

    A batch of B items has shape [B, T+1, N, ...]. Consecutive unrolls share one observation: row T of a block is row 0
    of the next one (Espeholt et al., SEED RL, 2020, section 3).

    Args:
        table: name of the table of the items.
        bundles: store the columns of a block as one, of which batches have the parts: that takes a fraction of the time
            for small blocks. Each column that the table's signature has needs rows of its own.
    """

    def __init__(self, table: str = "replay", *, bundles: bool = False) -> None:
        super().__init__()
        self._table, self._bundles = table, bundles

    def __repr__(self) -> str:
        return f"<UnrollAdder table={self._table!r}>"

    def _begin(self, block: Block) -> None:
        del block

    def _add(self, block: Block) -> Added:
        row = np.array([self._sequence], np.int64)
        if self._bundles and can_be_bundled(block.columns):
            named = NewItems({"block": RowsOf("block", row)})
            return Added({"block": bundled(block.columns)}, {self._table: named})
        items = NewItems({name: RowsOf(name, row) for name in block.columns})
        return Added({name: array[None] for name, array in block.columns.items()}, {self._table: items})


__all__ = ["UnrollAdder"]
