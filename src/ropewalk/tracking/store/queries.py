"""Queries: statements that find runs and what they have, and the records that their rows become."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, Select, cast, exists, func, or_, select

from ropewalk.errors import RunNotFound
from ropewalk.near_names import near_names
from ropewalk.quantities import listed
from ropewalk.tracking.records import RUNNING, STATES, OwnerIs
from ropewalk.tracking.store.blocks import Points, unpack
from ropewalk.tracking.store.column_values import from_json, from_number
from ropewalk.tracking.store.owners import LocalProcesses
from ropewalk.tracking.store.rows import LOST, RunRow, SeriesRow
from ropewalk.tracking.store.schema import BLOCKS, FACTS, LABELS, RUNS, SERIES

ORDERS = ("created", "changed", "name", "project", "state")
"""What runs can be ordered by."""
_MOST_NAMED = 10
"""How many runs a message names."""


def runs_query(
    *,
    project: str | None,
    states: Collection[str] | None,
    kind: str | None,
    parent: str | None,
    labels: Collection[str],
    text: str | None,
    archived: bool | None,
    order: str,
    heard_since: float | None = None,
) -> Select[Any]:
    """Return the statement that finds runs; the arguments are those of `RunStore.runs`.

    Raises:
        ValueError: a state or an order is unknown.
    """
    query = select(RUNS)
    for column, value in ((RUNS.c.project, project), (RUNS.c.kind, kind), (RUNS.c.parent, parent)):
        if value is not None:
            query = query.where(column == value)
    if states is not None:
        query = query.where(RUNS.c.state.in_(_stored_states(states)))
    if archived is not None:
        query = query.where(RUNS.c.archived.is_(archived))
    for label in labels:
        query = query.where(exists().where(LABELS.c.run == RUNS.c.id, LABELS.c.label == label))
    if heard_since is not None:
        query = query.where(RUNS.c.heard >= heard_since)
    if text:
        query = query.where(_mentions(text))
    name, descending = order.removeprefix("-"), order.startswith("-")
    if name not in ORDERS:
        raise ValueError(f"runs are ordered by {', '.join(ORDERS)}, or by one of them after a minus, not {order!r}")
    columns = [RUNS.c[name], *([RUNS.c.created] if name != "created" else []), RUNS.c.id]
    return query.order_by(*(column.desc() if descending else column for column in columns))


def _stored_states(states: Collection[str]) -> set[str]:
    known = (*STATES, LOST)
    if unknown := sorted(set(states) - set(known)):
        raise ValueError(f"{unknown[0]!r} is not a state of a run; they are {', '.join(known)}")
    return {RUNNING if state == LOST else state for state in states}


def _mentions(text: str) -> ColumnElement[bool]:
    """Whether a text is part of a run's id, project, name, configuration, cause or labels, in any case of letters."""
    columns = (RUNS.c.id, RUNS.c.project, RUNS.c.name, RUNS.c.config, RUNS.c.why)
    in_label = exists().where(LABELS.c.run == RUNS.c.id, _contains(LABELS.c.label, text))
    return or_(*(_contains(column, text) for column in columns), in_label)


def _contains(column: ColumnElement[str], text: str) -> ColumnElement[bool]:
    return func.lower(column).contains(text.lower(), autoescape=True)


def labels_of(connection: Connection, runs: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """Return the labels of runs, sorted; of all runs for None."""
    query = select(LABELS.c.run, LABELS.c.label).order_by(LABELS.c.run, LABELS.c.label)
    if runs is not None:
        query = query.where(LABELS.c.run.in_(runs))
    found: dict[str, list[str]] = {}
    for run, label in connection.execute(query):
        found.setdefault(run, []).append(label)
    return {run: tuple(sorted(labels)) for run, labels in found.items()}


def users_of(connection: Connection, runs: Sequence[str] | None) -> dict[str, str]:
    """Return the users who began runs, by run, as far as that was kept; of all runs for None."""
    if connection.dialect.name == "postgresql":
        user: ColumnElement[str] = func.json_extract_path_text(cast(FACTS.c.facts, JSON), "user")
    else:
        user = func.json_extract(FACTS.c.facts, "$.user")
    query = select(FACTS.c.run, user)
    if runs is not None:
        query = query.where(FACTS.c.run.in_(runs))
    return {run: str(name) for run, name in connection.execute(query) if name}


def to_run(row: Any, labels: Mapping[str, tuple[str, ...]], processes: LocalProcesses, now: float) -> RunRow:
    """Return the record of a row of `runs_query`.

    Args:
        row: the row, whose columns are those of the table.
        labels: labels by run.
        processes: those of this host, by which a run is seen to be lost.
        now: seconds since the epoch.
    """
    owner = OwnerIs(row.owner_host, row.owner_pid, row.owner_started, row.owner_boot) if row.owner_pid else None
    state = row.state
    if state == RUNNING and processes.is_gone(owner or OwnerIs("", 0, 0, ""), now - row.heard):
        state = LOST
    return RunRow(
        row.id,
        row.project,
        row.name,
        row.kind,
        state,
        row.why,
        row.created,
        row.changed,
        row.heard,
        from_json(row.config),
        labels.get(row.id, ()),
        row.parent,
        row.parent_step,
        row.folder,
        bool(row.archived),
        owner,
    )


def find_run(connection: Connection, ref: str) -> Any:
    """Return the row of the run that has an id, a name or the beginning of an id.

    Raises:
        RunNotFound: none has, or several do; the message names them.
    """
    if not ref:
        raise RunNotFound("an empty text names no run; give an id, the beginning of one, or a name", ref=ref)
    tries = (RUNS.c.id == ref, RUNS.c.name == ref, RUNS.c.id.startswith(ref, autoescape=True))
    for condition in tries:
        rows = connection.execute(select(RUNS).where(condition).order_by(RUNS.c.created.desc()).limit(100)).all()
        if len(rows) == 1:
            return rows[0]
        if rows:
            named = listed([f"{row.id} ({row.name}, {row.state})" for row in rows], _MOST_NAMED)
            ids = tuple(row.id for row in rows)
            raise RunNotFound(f"{ref!r} may mean {named}; give an id", ref=ref, candidates=ids)
    return _missing(connection, ref)


def _missing(connection: Connection, ref: str) -> Any:
    query = select(RUNS.c.id, RUNS.c.name).order_by(RUNS.c.created.desc()).limit(1000)
    names = {text: row.id for row in connection.execute(query) for text in (row.id, row.name)}
    near = near_names(ref, names, most=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`ropewalk runs list` shows all"
    if not names:
        hint = "the store has no runs"
    ids = tuple(names[text] for text in near)
    raise RunNotFound(f"no run has the id or name {ref!r}; {hint}", ref=ref, candidates=ids)


def to_series(row: Any) -> SeriesRow:
    """Return the record of a row of the table of series."""
    num_known = row.count - row.num_nan
    return SeriesRow(
        row.group,
        row.name,
        row.count,
        row.num_nan,
        from_number(row.last),
        from_number(row.last_step),
        from_number(row.last_time),
        from_number(row.least),
        from_number(row.greatest),
        from_number(row.total) / num_known if num_known else from_number(None),
    )


def read_points(connection: Connection, run: str, group: str, name: str, after: int) -> Points:
    """Return the points of a series but the first `after` ones that were stored; none if there is no such series."""
    chosen = (SERIES.c.run == run, SERIES.c.group == group, SERIES.c.name == name)
    query = select(BLOCKS.c.start, BLOCKS.c.data).join(SERIES, SERIES.c.id == BLOCKS.c.series).where(*chosen)
    blocks = connection.execute(query.where(BLOCKS.c.start + BLOCKS.c.count > after).order_by(BLOCKS.c.start)).all()
    points = unpack([bytes(data) for _, data in blocks])
    known = max(0, after - blocks[0].start) if blocks else 0  # of the first block, which may have been merged since
    return points[known:].in_order()
