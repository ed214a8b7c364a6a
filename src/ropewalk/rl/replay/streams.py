"""`Streams`: which insertions were done, and which of their rows later insertions may still name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.insertion import Insertion, RowsOf
from ropewalk.rl.replay.slab import Slots


@dataclass(frozen=True, slots=True)
class RowWindow:
    """The slots of a stream's latest rows in one column.

    Attributes:
        start: number of its first row within the stream.
        slots: slots of rows `start` and on.
    """

    start: int = 0
    slots: Slots = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def end(self) -> int:
        """Number of the stream's next row."""
        return self.start + len(self.slots)


@dataclass(slots=True)
class RowStream:
    """One run id.

    Attributes:
        sequence: number of its next insertion.
        windows: the windows, by column.
    """

    sequence: int = 0
    windows: dict[str, RowWindow] = field(default_factory=dict[str, RowWindow])


class Streams:
    """All streams by run id."""

    def __init__(self) -> None:
        self.open: dict[str, RowStream] = {}
        self.ended: dict[str, int] = {}

    def is_new(self, run_id: str, sequence: int) -> bool:
        """Return whether an insertion is the next one of its stream; False: it was done before.

        Raises:
            ValueError: insertions before it are missing, or the stream was ended.
        """
        ended = self.ended.get(run_id)
        expected = self.open[run_id].sequence if run_id in self.open else ended or 0
        if sequence < expected:
            return False
        if ended is not None:
            raise ValueError(
                f"insertion {sequence} of stream {run_id!r} came after the stream had been ended with {ended} "
                "insertions; a new life of an actor needs a new run id"
            )
        if sequence > expected:
            raise ValueError(
                f"insertion {sequence} of stream {run_id!r} came where insertion {expected} is expected; those between "
                "were lost (if replay has started anew, its streams have to start over too, with new run ids)"
            )
        return True

    def copied(self) -> Streams:
        """Return a copy that does not change with this."""
        other = Streams()
        other.open = {run_id: RowStream(of.sequence, dict(of.windows)) for run_id, of in self.open.items()}
        other.ended = dict(self.ended)
        return other

    def state_dict(self, saved_slots: Mapping[str, Slots]) -> dict[str, Array]:
        """Return all streams.

        Args:
            saved_slots: by column and slot, the number under which the row is saved.
        """
        streams = list(self.open.values())
        state: dict[str, Array] = {
            "run_ids": np.array(list(self.open), np.str_),
            "sequences": np.array([stream.sequence for stream in streams], np.int64),
            "ended/run_ids": np.array(list(self.ended), np.str_),
            "ended/sequences": np.array(list(self.ended.values()), np.int64),
        }
        for column, numbers in saved_slots.items():
            windows = [stream.windows.get(column, RowWindow()) for stream in streams]
            state[f"starts/{column}"] = np.array([window.start for window in windows], np.int64)
            state[f"lengths/{column}"] = np.array([len(window.slots) for window in windows], np.int64)
            state[f"slots/{column}"] = numbers[
                np.concatenate([np.empty(0, np.int64), *(each.slots for each in windows)])
            ]
        return state

    def load_state_dict(self, state: Mapping[str, Array], columns: Iterable[str]) -> None:
        """Take over streams; there were none before."""
        sequences = zip(state["run_ids"].tolist(), state["sequences"].tolist(), strict=True)
        self.open = {run_id: RowStream(sequence) for run_id, sequence in sequences}
        self.ended = dict(zip(state["ended/run_ids"].tolist(), state["ended/sequences"].tolist(), strict=True))
        for column in columns:
            slots, first = state[f"slots/{column}"].astype(np.int64), 0
            windows = zip(state[f"starts/{column}"].tolist(), state[f"lengths/{column}"].tolist(), strict=True)
            for stream, (start, length) in zip(self.open.values(), windows, strict=True):
                stream.windows[column] = RowWindow(start, slots[first : first + length])
                first += length

    def window(self, run_id: str, column: str) -> RowWindow:
        """Return the window of a stream in a column; an empty one that is not kept if there is none."""
        stream = self.open.get(run_id)
        return (stream and stream.windows.get(column)) or RowWindow()


def check_rows(insertion: Insertion, table: str, rows: RowsOf, start: int, end: int) -> None:
    """Check that the rows of new items are there.

    Args:
        insertion: what they come with.
        table: name of the table, for messages.
        rows: the rows; -1 stands for no row.
        start: number of the first row that is there.
        end: number of the row after the last one, those of the insertion included.

    Raises:
        ValueError: a row is not kept any more, or not sent yet.
    """
    numbers = rows.rows
    if not numbers.size:
        return
    if end == 0:
        raise ValueError(
            f"items for table {table!r} in insertion {insertion.sequence} of stream {insertion.run_id!r} name rows of "
            f"column {rows.column!r}, which the stream does not have; it sent {sorted(insertion.rows)}"
        )
    named = numbers if numbers.ndim == 1 else numbers[numbers != -1]
    if not named.size:
        return
    least, largest = int(named.min()), int(named.max())
    if least < start or largest >= end:
        raise ValueError(
            f"items for table {table!r} in insertion {insertion.sequence} of stream {insertion.run_id!r} name row "
            f"{least if least < start else largest} of column {rows.column!r}, and rows {start} to "
            f"{end - 1} are there; rows before those were not in `keep` of an earlier insertion, rows after them were "
            "not sent"
        )


def first_kept(keep: Mapping[str, int], column: str, window: RowWindow) -> int:
    """Return the first row of a column that stays in the stream's window; its end if none does."""
    end = window.end
    return min(max(keep.get(column, end), window.start), end)


__all__ = ["RowStream", "RowWindow", "Streams", "check_rows", "first_kept"]
