"""`TrajectoryWriter`: writes steps of one's own loop to replay, and makes items of any cells of them.

    with rl.TrajectoryWriter(replay, keep=4) as writer:
        writer.append({"observation": first}, partial=True)          # step 0, its action follows
        writer.append({"action": action, "reward": reward})          # step 0 is complete
        ...
        writer.create_item("replay", {"observation": writer.history["observation"][-4:],    # four rows: a frame stack
                                      "action": writer.history["action"][-1]}, priority=1.0)
        writer.end_episode()

As the `TrajectoryWriter` of Reverb (Cassirer et al., 2021, https://arxiv.org/abs/2102.04736, section 3.2). A cell is
sent and stored once, however many items refer to it.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

import ropewalk as rw
from ropewalk.argument_kinds import check_number
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.inserter import Inserter
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class TrajectoryCell:
    """One row of one column, as it was written.

    Attributes:
        column: name of the column.
        row: its number in the column's stream.
        episode: number of the episode, from 0.
        step: number of the step in the episode, from 0.
    """

    column: str
    row: int
    episode: int
    step: int


Cells: TypeAlias = TrajectoryCell | Sequence[TrajectoryCell] | slice
"""One row; several rows; or a slice of the cells in this episode of the written column with the same name."""


@dataclass(slots=True)
class _Item:
    table: str
    columns: dict[str, tuple[str, int | tuple[int, ...]]]
    priority: float | None

    @property
    def form(self) -> dict[str, tuple[str, int]]:
        """The stored column and the number of rows by column; items of one message have equal ones."""
        return {name: (of, -1 if isinstance(rows, int) else len(rows)) for name, (of, rows) in self.columns.items()}

    def goes_with(self, other: _Item) -> bool:
        """Whether both can be in one message, where all items of a table have priorities or none has."""
        return self.form == other.form and (self.priority is None) == (other.priority is None)


class TrajectoryWriter:
    """Writes to replay; for one thread.

    Cells and items are sent together, when `num_items` items have been made, at the end of an episode, and by `flush`.
    They are sent without waiting for each answer, and inserted once, whatever happens to the server.

    Args:
        replay: a client of a replay server, a `ReplayServer`, a `ReplayTables` or a `ShardedReplay`.
        keep: number of a column's latest cells that items may refer to.
        num_items: items of a message.
        ahead: messages that may be without an answer; a further one waits.
        run_id: names the stream; None: a new one, which begins with the name of the node.

    Attributes:
        history: by column, the cells of this episode that items may refer to, the oldest first.
        version: version of the weights that choose the actions; set it when they change.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(
        self, replay: Any, *, keep: int, num_items: int = 16, ahead: int = 4, run_id: str | None = None
    ) -> None:
        for name, value in (("keep", keep), ("num_items", num_items)):
            check_number(name, value, Integral, "a whole number", least=1, required=True)
        self.run_id: str = new_run_id() if run_id is None else run_id
        self.history: dict[str, list[TrajectoryCell]] = {}
        self.version = 0
        self._inserter = Inserter(replay, ahead)
        self._keep, self._num_items = keep, num_items
        self._sequence = self._episode = self._step = 0
        self._num_steps = 0
        self._in_step: set[str] = set()
        """Columns of the present step that were written."""
        self._rows: dict[str, list[Array]] = {}
        """Rows that were not sent yet."""
        self._num_rows: dict[str, int] = {}
        self._forms: dict[str, tuple[tuple[int, ...], str]] = {}
        """Shape and dtype of each column's values."""
        self._items: list[_Item] = []

    def __repr__(self) -> str:
        return f"<TrajectoryWriter of {self._num_steps} steps>"

    def append(self, columns: Mapping[str, ArrayLike], *, partial: bool = False) -> dict[str, TrajectoryCell]:
        """Write cells of the current step.

        Args:
            columns: a value for each of some columns.
            partial: whether more cells of this step follow; otherwise the next ones are of the next step.

        Returns:
            The new cells by column.

        Raises:
            ValueError: the step has a value of this column already, or the value has another shape or dtype than the
                ones before; nothing was written.
        """
        rows = {name: np.asarray(value) for name, value in columns.items()}
        for name, row in rows.items():
            self._check_row(name, row)
        self._forms |= {name: _form_of(row) for name, row in rows.items()}
        cells: dict[str, TrajectoryCell] = {}
        for name, row in rows.items():
            cells[name] = TrajectoryCell(name, self._num_rows.get(name, 0), self._episode, self._step)
            self._num_rows[name] = cells[name].row + 1
            # A copy, since environments write to their observations again.
            self._rows.setdefault(name, []).append(row.copy())
            history = self.history.setdefault(name, [])
            history.append(cells[name])
            del history[: -self._keep]
        self._in_step |= rows.keys()
        if not partial:
            self._next_step()
        return cells

    def create_item(self, table: str, columns: Mapping[str, Cells], priority: float | None = None) -> None:
        """Make an item of cells of this episode.

        Args:
            table: name of the table.
            columns: for each column of the table's samples a cell, which becomes one row of shape (...); or several,
                which become shape (L, ...).
            priority: priority of the item; None: the largest in the table.

        Raises:
            ValueError: a cell is too old, of another episode, or not there; or the columns do not fit the signature of
                the table.
            RuntimeError, LimiterDeadlock: earlier items could not be inserted, and are sent again by the next call;
                this one was not taken.
        """
        item = _Item(table, {name: self._resolved(name, cells) for name, cells in columns.items()}, priority)
        self._check_signature(item)
        if any(each.table == table and not each.goes_with(item) for each in self._items):
            self._send()
        self._items.append(item)
        if len(self._items) >= self._num_items:
            try:
                self._send()
            except Exception:
                self._items.pop()
                raise

    def end_episode(self) -> None:
        """Begin another episode; items made so far are sent, and later ones cannot refer to this episode's cells."""
        if self._in_step:
            self._next_step()
        self._send()
        self._episode, self._step = self._episode + 1, 0
        self.history = {}

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything, and wait until it was inserted.

        Args:
            timeout_s: seconds; None waits for ever.

        Raises:
            DeadlineExceeded: after `timeout_s`; the items stay under way.
        """
        self._send()
        self._inserter.flush(timeout_s)

    def close(self) -> None:
        """Give up what was not inserted yet; may be called twice. Leaving a `with` block flushes first."""
        self._inserter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()

    def _next_step(self) -> None:
        self._step += 1
        self._num_steps += 1
        self._in_step = set()

    def _check_row(self, name: str, row: Array) -> None:
        if name in self._in_step:
            raise ValueError(
                f"step {self._step} of episode {self._episode} has a value of column {name!r} already; a step is "
                "complete when append was called without partial=True"
            )
        form = _form_of(row)
        before = self._forms.get(name, form)
        if before != form:
            raise ValueError(
                f"column {name!r} has values of shape {before[0]} and dtype {before[1]}, and this one has shape "
                f"{form[0]} and dtype {form[1]}"
            )

    def _check_signature(self, item: _Item) -> None:
        signature = next((each.signature for each in self._inserter.tables() if each.name == item.table), None)
        if signature is None:
            return
        if signature.keys() != item.columns.keys():
            raise ValueError(
                f"the item for table {item.table!r} has columns {sorted(item.columns)}; its signature has "
                f"{sorted(signature)}"
            )
        for name, (column, _) in item.columns.items():
            spec, (shape, dtype) = signature[name], self._forms[column]
            if (spec.shape, np.dtype(spec.dtype).name) != (shape, dtype):
                raise ValueError(
                    f"column {name!r} of the item for table {item.table!r} has rows of shape {shape} and dtype "
                    f"{dtype}; the signature says {spec.shape} and {spec.dtype}"
                )

    def _resolved(self, name: str, cells: Cells) -> tuple[str, int | tuple[int, ...]]:
        """The stored column and the rows of one column of an item."""
        if isinstance(cells, slice):
            cells = self.history.get(name, [])[cells]
        found = [cells] if isinstance(cells, TrajectoryCell) else list(cells)
        if not found:
            raise ValueError(
                f"column {name!r} of the item has no cells; give at least one, or a slice of a written column of that "
                f"name: {', '.join(self.history) or 'none was written in this episode'}"
            )
        if len({cell.column for cell in found}) > 1:
            raise ValueError(f"column {name!r} of the item has cells of several columns: {found}")
        for cell in found:
            kept = self.history.get(cell.column, [])
            if cell.episode != self._episode:
                raise ValueError(
                    f"column {name!r} of the item refers to episode {cell.episode}, and this is episode "
                    f"{self._episode}; an item is within one episode"
                )
            if not kept or cell.row < kept[0].row:
                raise ValueError(
                    f"column {name!r} of the item refers to step {cell.step}, of which the cell is not kept any more: "
                    f"keep={self._keep} cells of each column are; use a larger keep"
                )
        rows = found[0].row if isinstance(cells, TrajectoryCell) else tuple(cell.row for cell in found)
        return found[0].column, rows

    def _send(self) -> None:
        """Send the cells and items that were not sent."""
        if not self._items and not any(self._rows.values()):
            return
        rows = {name: np.stack(values) for name, values in self._rows.items() if values}
        tables = dict.fromkeys(item.table for item in self._items)
        items = {table: _joined([item for item in self._items if item.table == table]) for table in tables}
        keep = {name: max(0, num - self._keep) for name, num in self._num_rows.items()}
        insertion = Insertion(
            self.run_id, self._sequence, rows, items, keep, version=self.version, steps=self._num_steps
        )
        self._inserter.insert(insertion)  # if it raises, rows and items are sent by the next call
        self._rows, self._items = {}, []
        self._num_steps = 0
        self._sequence += 1


def _form_of(row: Array) -> tuple[tuple[int, ...], str]:
    return row.shape, row.dtype.name


def _joined(items: Sequence[_Item]) -> NewItems:
    """Items of one table, of equal form, as one."""
    columns: dict[str, RowsOf] = {}
    for name, (column, _) in items[0].columns.items():
        columns[name] = RowsOf(column, np.array([item.columns[name][1] for item in items], np.int64))
    if items[0].priority is None:
        return NewItems(columns)
    return NewItems(columns, np.array([item.priority for item in items], np.float64))


def new_run_id() -> str:
    """Return a run id that no other stream has: node, number in its process, and generation, such as "actor.3/0#1"."""
    number = next(_numbers)
    try:
        node = rw.current_node()
    except RuntimeError:  # outside of a program
        return f"{uuid.uuid4().hex[:12]}/{number}#0"
    return f"{node.label}/{number}#{node.generation}"


__all__ = ["Cells", "TrajectoryCell", "TrajectoryWriter", "new_run_id"]
