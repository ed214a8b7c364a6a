"""Signatures, checked where items are made."""

from __future__ import annotations

import numpy as np
import pytest

from ropewalk.rl.environments.spec import ArraySpec
from ropewalk.rl.replay.checking import check_signature
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf
from tests.rl.replay.insertions import numbered, table

SIGNATURE = {"x": ArraySpec((3,), "uint8")}


def insertion(rows: np.ndarray | None, name: str = "x") -> Insertion:
    items = {"t": NewItems({name: RowsOf("frame", np.array([[0, 1]]))})}
    return Insertion("0#0", 0, {} if rows is None else {"frame": rows}, items)


def test_rows_of_the_right_shape_and_dtype_pass_as_do_rows_that_were_sent_before() -> None:
    check_signature(table(signature=SIGNATURE), insertion(np.zeros((2, 3), np.uint8)))
    check_signature(table(signature=SIGNATURE), insertion(None))
    check_signature(table("other", signature=SIGNATURE), insertion(np.zeros(2)))
    check_signature(table(), numbered(0))


@pytest.mark.parametrize(
    ("rows", "name", "words"),
    [
        (np.zeros((2, 4), np.uint8), "x", r"shape \(4,\) and dtype uint8; its signature says \(3,\) and uint8"),
        (np.zeros((2, 3), np.int8), "x", r"shape \(3,\) and dtype int8; its signature says \(3,\) and uint8"),
        (np.zeros((2, 3), np.uint8), "y", r"have columns \['y'\]; its signature has \['x'\]"),
    ],
)
def test_other_rows_are_refused(rows: np.ndarray, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_signature(table(signature=SIGNATURE), insertion(rows, name))
