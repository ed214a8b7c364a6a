from __future__ import annotations

import numpy as np

from tests.rl.agents.experience import DISCRETE, random_batch


def test_some_items_of_a_batch_keep_their_facts() -> None:
    batch = random_batch(DISCRETE, 0, blocks=3, versions=(4, 5, 6))
    some = batch.take(np.array([2, 0]))
    assert len(some) == 2
    assert all((some.columns[name] == array[[2, 0]]).all() for name, array in batch.columns.items())
    assert (some.info.keys.tolist(), some.info.version.tolist()) == ([102, 100], [6, 4])
    assert (some.info.run_ids, some.info.table_size) == (("2#0", "0#0"), 3)
