"""Each block is one item."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.adders.unroll import UnrollAdder
from tests.rl.adders.experience import StoredStream, experience


def test_each_block_is_one_item_that_keeps_nothing_of_earlier_blocks() -> None:
    _, blocks = experience(0, 3, [4, 4, 4])
    adder, stored = UnrollAdder("unrolls"), StoredStream()
    for block in blocks:
        insertion = adder.add(block)
        assert (insertion.version, insertion.steps, insertion.keep) == (block.version, block.steps, {})
        (item,) = stored.add(insertion, "unrolls")
        assert item.keys() == block.columns.keys()
        for name, array in block.columns.items():
            np.testing.assert_array_equal(item[name], array)


def test_each_run_id_is_a_stream_of_its_own() -> None:
    _, blocks = experience(0, 1, [2, 2])
    adder = UnrollAdder()
    first, second = blocks
    assert [adder.add(block).sequence for block in blocks] == [0, 1]
    again = type(first)(second.columns, "0#1", 0, 0, 2)
    insertion = adder.add(again)
    assert (insertion.run_id, insertion.sequence) == ("0#1", 0)
    assert insertion.items["replay"].columns["reward"].rows.tolist() == [0]
