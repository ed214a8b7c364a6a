"""A stream that starts over brings exactly the items that were not acknowledged, with all rows that they need."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.rl.adders.n_step import NStepAdder
from ropewalk.rl.adders.sequence import SequenceAdder
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf
from ropewalk.rl.replay.sent_rows import SentStream
from tests.rl.adders.experience import StoredStream, assert_equal_items, experience


@given(
    seed=st.integers(0, 100),
    lengths=st.lists(st.integers(1, 4), min_size=3, max_size=8),
    events=st.lists(st.sampled_from(["add", "acknowledge", "lose"]), max_size=30),
)
@settings(max_examples=80)
def test_items_of_a_stream_that_begins_anew_are_those_that_were_not_acknowledged(
    seed: int, lengths: list[int], events: list[str]
) -> None:
    adder = NStepAdder(3, 0.9)
    made = [adder.add(block) for block in experience(seed, 2, lengths)[1]]
    whole = StoredStream()
    expected = [whole.add(insertion) for insertion in made]
    stream, stored, num_added, num_done = SentStream("0#0"), StoredStream(), 0, 0
    under_way: list[Insertion] = []
    found: dict[int, list[dict[str, Any]]] = {}
    for event in [*events, *["add", "acknowledge"] * len(made)]:
        if event == "add" and num_added < len(made):
            under_way.append(stream.add(made[num_added]))
            num_added += 1
        elif event == "acknowledge" and under_way:
            sent = under_way.pop(0)
            assert sent.run_id == stream.name and stream.acknowledged == sent.sequence
            found[num_done] = stored.add(sent)
            stream.acknowledge(1)
            num_done += 1
        elif event == "lose":
            stored, under_way = StoredStream(), stream.begin_anew()
    assert num_done == len(made)
    for number, items in found.items():
        assert_equal_items(items, expected[number])


def test_the_new_stream_has_another_name_and_its_own_numbers() -> None:
    adder = SequenceAdder(4, 2)
    made = [adder.add(block) for block in experience(0, 1, [2] * 6)[1]]
    stream = SentStream("0#0")
    for insertion in made[:4]:
        assert stream.add(insertion) is insertion
    stream.acknowledge(2)
    again = stream.begin_anew()
    assert [(each.run_id, each.sequence) for each in again] == [("0#0~1", 0), ("0#0~1", 1)]
    assert len(again[0].rows["reward"]) == 4 and len(again[1].rows["reward"]) == 2
    assert stream.add(made[4]).sequence == 2
    assert [each.run_id for each in stream.begin_anew()] == ["0#0~2"] * 3


def test_rows_that_nothing_needs_any_more_are_not_kept() -> None:
    adder = NStepAdder(2, 0.9)
    stream = SentStream("0#0")
    for block in experience(0, 1, [5] * 4)[1]:
        stream.add(adder.add(block))
        stream.acknowledge(1)
    kept = sum(len(rows) for parts in stream._kept.values() for _, rows in parts)  # pyright: ignore[reportPrivateUsage]
    assert kept == 6  # action and value of one step, two columns of observations of two


def test_rows_that_stand_for_no_row_stay_so() -> None:
    stream = SentStream("0#0")
    rows = {"x": np.zeros((2, 1))}
    stream.add(Insertion("0#0", 0, rows, {}, {"x": 1}))
    stream.acknowledge(1)
    stream.add(Insertion("0#0", 1, rows, {"t": NewItems({"x": RowsOf("x", np.array([[1, -1]]))})}))
    (again,) = stream.begin_anew()
    assert again.items["t"].columns["x"].rows.tolist() == [[0, -1]]
    assert len(again.rows["x"]) == 3
