"""Columns that travel as one array."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.inference.records import as_records, columns_of

COLUMNS: dict[str, list[Array]] = {
    "rows": [np.arange(30).reshape(3, 10), np.arange(100, 110)[None]],
    "first": [np.array([True, False, True]), np.array([False])],
    "observation.image": [np.arange(36, dtype=np.uint8).reshape(3, 3, 4), np.ones((1, 3, 4), np.uint8)],
    "observation.name": [np.array(["a", "bö", ""]), np.array(["cc"])],
    "reward": [np.array([0.5, 1.5, -1.0], np.float32), np.array([np.inf], np.float32)],
}


def test_columns_come_out_of_records_as_they_went_in() -> None:
    for num in (1, 2):
        pieces = {name: each[:num] for name, each in COLUMNS.items()}
        records = as_records(pieces)
        assert records.shape == (2 * num + num % 2,)
        found = columns_of(records)
        assert list(found) == list(pieces)
        for name, each in pieces.items():
            np.testing.assert_array_equal(found[name], np.concatenate(each), strict=True)
            assert found[name].flags.c_contiguous and found[name].flags.aligned


def test_a_row_of_records_has_the_row_of_each_column() -> None:
    records = as_records(COLUMNS)
    found = columns_of(records[1:3])
    for name, each in COLUMNS.items():
        np.testing.assert_array_equal(found[name], np.concatenate(each)[1:3], strict=True)
