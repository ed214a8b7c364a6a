"""Writers: cells are stored once, whatever items refer to them, and items are of cells that are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ropewalk.rl.environments.spec import ArraySpec
from ropewalk.rl.replay.limiters import MinSize
from ropewalk.rl.replay.selectors.ordered import Fifo
from ropewalk.rl.replay.service import ReplayServer
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.replay.writer import TrajectoryWriter
from tests.rl.replay.stand_in import fifo, queue


def test_items_name_single_cells_lists_and_slices_of_columns_that_differ_in_length() -> None:
    tables = ReplayTables([queue(100)])
    with TrajectoryWriter(tables, keep=4, num_items=3) as writer:
        for step in range(8):
            writer.append({"frame": np.full(2, step, np.uint8)}, partial=True)
            writer.append({"action": step, "reward": step / 2})
            if step >= 3:
                history = writer.history
                stack = slice(-4, None) if step % 2 else history["frame"][-4:]
                writer.create_item("queue", {"frame": stack, "action": history["action"][-1]}, priority=step)
    batch = tables.sample("queue", 5)
    assert batch.columns["frame"][:, :, 0].tolist() == [[step - 3, step - 2, step - 1, step] for step in range(3, 8)]
    assert batch.columns["action"].tolist() == [3, 4, 5, 6, 7]
    assert batch.info.priority.tolist() == [3, 4, 5, 6, 7]


def test_nothing_is_lost_when_what_was_written_had_to_wait() -> None:
    tables = ReplayTables([queue(1)])
    writer, seen, num_waits = TrajectoryWriter(tables, keep=1, num_items=1, ahead=1), list[float](), 0
    for step in range(6):
        cells = writer.append({"x": float(step)})
        while True:
            try:
                writer.create_item("queue", cells)
                break
            except RuntimeError:
                num_waits += 1
                seen += tables.sample("queue", 1).columns["x"].tolist()
    while len(seen) < 6:
        seen += tables.sample("queue", 1).columns["x"].tolist()
        writer.flush()
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] and num_waits == 4


def test_items_with_a_priority_and_items_without_one_take_turns() -> None:
    tables = ReplayTables([queue(100)])
    with TrajectoryWriter(tables, keep=1, num_items=4) as writer:
        for step, priority in enumerate([None, 2.0, 3.0, None, 1.0, None]):
            writer.create_item("queue", writer.append({"x": float(step)}), priority)
    batch = tables.sample("queue", 6)
    assert batch.columns["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert batch.info.priority.tolist() == [1.0, 2.0, 3.0, 3.0, 1.0, 3.0]


def test_a_stack_of_frames_takes_the_memory_of_single_frames() -> None:
    tables = ReplayTables([fifo()])
    with TrajectoryWriter(tables, keep=8) as writer:
        for step in range(40):
            writer.append({"frame": np.full(1000, step % 256, np.uint8)})
            if step >= 8:
                frames = writer.history["frame"]
                writer.create_item("fifo", {"observation": frames[-5:-1], "next_observation": frames[-4:]})
    assert tables.info()["fifo"].size == 32
    assert tables.info()["fifo"].num_bytes == 36 * 1000


def test_an_item_is_within_one_episode_and_of_cells_that_are_kept() -> None:
    tables = ReplayTables([queue(100)])
    writer = TrajectoryWriter(tables, keep=2)
    first = writer.append({"x": 1.0})["x"]
    writer.append({"x": 2.0})
    writer.create_item("queue", {"x": first})
    last = writer.append({"x": 3.0})["x"]
    with pytest.raises(ValueError, match="refers to step 0, of which the cell is not kept any more: keep=2"):
        writer.create_item("queue", {"x": first})
    writer.end_episode()
    writer.append({"x": 4.0})
    with pytest.raises(ValueError, match="refers to episode 0, and this is episode 1"):
        writer.create_item("queue", {"x": last})
    with pytest.raises(ValueError, match="has no cells"):
        writer.create_item("queue", {"x": slice(5, 9)})
    writer.flush()
    assert tables.sample("queue", 1).columns["x"].tolist() == [1.0]


def test_a_step_has_one_value_of_a_column_and_a_column_one_shape() -> None:
    writer = TrajectoryWriter(ReplayTables([queue(100)]), keep=2)
    writer.append({"x": 1.0}, partial=True)
    with pytest.raises(ValueError, match="step 0 of episode 0 has a value of column 'x' already"):
        writer.append({"x": 1.0})
    writer.append({"y": 1.0})
    with pytest.raises(ValueError, match=r"values of shape \(\) and dtype float64, and this one has shape \(2,\)"):
        writer.append({"x": [1.0, 2.0]})


def test_the_signature_is_checked_when_an_item_is_made() -> None:
    signature = {"x": ArraySpec((2,), "float32")}
    server = ReplayServer([ReplayTable.queue("queue", 4, signature)])
    with TrajectoryWriter(server, keep=2) as writer:
        writer.append({"x": np.zeros(2), "good": np.zeros(2, np.float32)})
        with pytest.raises(
            ValueError, match=r"rows of shape \(2,\) and dtype float64; the signature says \(2,\) and float32"
        ):
            writer.create_item("queue", {"x": slice(-1, None)})
        with pytest.raises(ValueError, match=r"has columns \['good'\]; its signature has \['x'\]"):
            writer.create_item("queue", {"good": slice(-1, None)})
        writer.create_item("queue", {"x": writer.history["good"][-1]})
    assert server.info()["queue"].inserts == 1


def test_items_of_different_lengths_go_in_messages_of_their_own() -> None:
    table = ReplayTable("fifo", sampler=Fifo(), remover=Fifo(), max_size=9, limiter=MinSize(1), max_times_sampled=1)
    server = ReplayServer([table, queue(10)])
    with TrajectoryWriter(server, keep=8) as writer:
        for step in range(3):
            writer.append({"x": step})
        writer.create_item("fifo", {"x": slice(-2, None)})
        writer.create_item("queue", {"x": slice(-3, None)})
        writer.create_item("queue", {"x": slice(0, 3)})
    assert server.sample("fifo", 1).columns["x"].tolist() == [[1, 2]]
    assert server.sample("queue", 2).columns["x"].tolist() == [[0, 1, 2], [0, 1, 2]]


def test_flush_waits_until_everything_was_inserted() -> None:
    server = ReplayServer([queue(10)])
    writer = TrajectoryWriter(server, keep=2)
    writer.append({"x": 1})
    writer.create_item("queue", {"x": slice(-1, None)})
    assert server.info()["queue"].inserts == 0
    writer.flush(timeout_s=60)
    assert server.info()["queue"].inserts == 1
    writer.close()
    writer.close()


def test_each_writer_has_a_stream_of_its_own() -> None:
    server = ReplayServer([queue(10)])
    for value in (1, 2):
        with TrajectoryWriter(server, keep=2) as writer:
            writer.append({"x": value})
            writer.create_item("queue", {"x": writer.history["x"][-1]})
    batch = server.sample("queue", 2)
    assert batch.columns["x"].tolist() == [1, 2] and len(set(batch.info.run_ids)) == 2


@pytest.mark.parametrize("name", ["keep", "num_items"])
def test_numbers_below_one_are_refused(name: str) -> None:
    arguments: dict[str, Any] = {"keep": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be a whole number, 1 or more, not 0"):
        TrajectoryWriter(ReplayServer([queue(1)]), **arguments)


def test_a_refused_append_says_nothing_about_later_ones() -> None:
    """Of a step that was refused as a whole, the columns before the wrong one still decided about shapes and dtypes."""
    with TrajectoryWriter(ReplayTables([queue(100)]), keep=1) as writer:
        writer.append({"reward": 0.5}, partial=True)
        with pytest.raises(ValueError, match="'reward' already"):
            writer.append({"x": [1, 2], "reward": 0.5})
        writer.append({"x": 1.0})
        assert list(writer.history) == ["reward", "x"]
