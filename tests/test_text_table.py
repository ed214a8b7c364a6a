"""Tables of text: aligned columns, which one long cell does not widen for all rows."""

from __future__ import annotations

import doctest

from ropewalk import text_table as module
from ropewalk.text_table import text_table


def test_the_example_of_the_docstring_is_true() -> None:
    assert doctest.testmod(module) == (0, 1)


def test_a_long_name_moves_its_own_row_only() -> None:
    # It was: a name of 200 characters made each line of `ropewalk runs list` 200 wider.
    rows = [("id", "name", "state"), ("a1", "brisk", "done"), ("b2", "n" * 200, "done"), ("c3", "calm", "failed")]
    heading, brisk, long, calm = text_table(rows)
    assert heading == "id  name   state" and brisk == "a1  brisk  done" and calm == "c3  calm   failed"
    assert long == f"b2  {'n' * 200}  done", "nothing is cut"


def test_names_that_are_all_long_are_aligned() -> None:
    rows = [("name", "state"), ("n" * 60, "done"), ("m" * 70, "done")]
    assert {line.index(word) for line, word in zip(text_table(rows), ("state", "done", "done"), strict=True)} == {72}


def test_a_single_long_name_does_not_spread_the_heading() -> None:
    assert next(text_table([("name", "state"), ("n" * 200, "done")])) == "name  state"
    assert next(text_table([("n" * 200, "done")])) == f"{'n' * 200}  done"
