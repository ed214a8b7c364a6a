"""Records become rows: what `RunStore.apply` does within its transaction.

Records of one kind are stored together, by a statement with many rows: a statement for each record would take four
times as long. Their order counts only among records of one function below. Records of a run that the store does not
have, such as one that was deleted while its process goes on, are dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, select, update

from ropewalk.tracking.metric_columns import gathered
from ropewalk.tracking.records import (
    DONE,
    FAILED,
    PAUSED,
    QUEUED,
    RUNNING,
    STATES,
    STOPPED,
    ArtifactKept,
    AttemptBegan,
    AttemptEnded,
    AttemptResumed,
    CheckpointKept,
    CheckpointRemoved,
    ConfigIs,
    EventHappened,
    LabelsAre,
    MetricColumns,
    Metrics,
    NoteAdded,
    OwnerIs,
    RunCreated,
    RunRecord,
    StateIs,
)
from ropewalk.tracking.store.column_values import from_json, to_json, to_name, to_number, to_text, to_time
from ropewalk.tracking.store.databases import insert
from ropewalk.tracking.store.metric_rows import SeriesCache, add_points, merge_all, transposed
from ropewalk.tracking.store.open_requests import answer_for_states
from ropewalk.tracking.store.schema import (
    ARTIFACTS,
    ATTEMPTS,
    CHECKPOINTS,
    EVENTS,
    FACTS,
    LABELS,
    NOTES,
    RUNS,
)

_log = logging.getLogger(__name__)

_HEARD_EVERY_S = 10.0
"""How exact `runs.heard` is; a run counts as silent after 60 s."""
_RESTING = (PAUSED, DONE, FAILED, STOPPED)
"""States in which nothing is logged for a while, so that it pays to merge blocks."""


# Statements of each transaction are made once: making one takes as long as executing it.
_CHOSEN_RUNS = (
    select(RUNS.c.id)
    .where(RUNS.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(RUNS.c.id)
    .with_for_update(read=True, key_share=True)
)
_CONFIGS = (
    select(RUNS.c.id, RUNS.c.config)
    .where(RUNS.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(RUNS.c.id)
    .with_for_update()
)
_REMOVE_LABEL = delete(LABELS).where(LABELS.c.run == bindparam("of_run"), LABELS.c.label == bindparam("of_label"))
_REMOVE_CHECKPOINT = delete(CHECKPOINTS).where(
    CHECKPOINTS.c.run == bindparam("of_run"), CHECKPOINTS.c.step == bindparam("of_step")
)
_SET_FROM_STEP = (
    update(ATTEMPTS)
    .where(ATTEMPTS.c.run == bindparam("of_run"), ATTEMPTS.c.number == bindparam("of_number"))
    .values(from_step=bindparam("new_step"))
)

Received = Sequence[tuple[str, Any]]
"""Records of one kind, or of a few, in their order, each with its run."""


class RecordWriter:
    """Applies batches of records, and remembers what it need not ask the database for again.

    Args:
        clock: returns the seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._series = SeriesCache()
        self._heard: dict[str, float] = {}
        self._dropped: set[str] = set()

    def forget(self) -> None:
        """Forget what was remembered, because a transaction has failed, or this is a forked child."""
        self._series.forget()
        self._heard.clear()

    def apply(self, connection: Connection, batch: Sequence[RunRecord]) -> None:
        """Store records in one transaction.

        Args:
            connection: in a transaction.
            batch: records, in the order in which they were made.
        """
        created = [(one.run, one.record) for one in batch if type(one.record) is RunCreated]
        if created:
            _create(connection, created)
        known = self._known(connection, {one.run for one in batch})
        metrics: list[tuple[str, Metrics | MetricColumns]] = []
        others: dict[Callable[[Connection, Received], None], list[tuple[str, Any]]] = {}
        for one in gathered(batch):  # a writer has done so for its journal already
            if self._dropped and one.run not in known:
                continue
            if isinstance(one.record, Metrics | MetricColumns):
                metrics.append((one.run, one.record))
            elif type(one.record) is not RunCreated:
                others.setdefault(_HANDLERS[type(one.record)], []).append((one.run, one.record))
        if points := transposed(metrics):
            add_points(connection, points, self._series)
        for store, records in others.items():
            store(connection, records)
        if turned := others.get(_turn):
            answer_for_states(connection, {run: record.state for run, record in turned}, self._clock())
        resting = {run for run, record in others.get(_turn, ()) if record.state in _RESTING}
        if resting:
            merge_all(connection, resting)
            self._series.forget_runs(resting)
        written = known & {one.run for one in batch if not isinstance(one.record, LabelsAre | NoteAdded)}
        self._hear(connection, written)
        if remarked := known - written:  # by anybody: this is no sign of life of a run that may be lost
            chosen = RUNS.c.id.in_(remarked), RUNS.c.state != RUNNING
            connection.execute(update(RUNS).where(*chosen).values(heard=self._clock()))

    def _known(self, connection: Connection, runs: set[str]) -> set[str]:
        # The lock, which only PostgreSQL has, keeps a run from being deleted until this transaction ends.
        known = set(connection.execute(_CHOSEN_RUNS, {"ids": list(runs)}).scalars())
        for run in runs - known - self._dropped:
            self._dropped.add(run)
            _log.warning("records of run %s are dropped: the store has no such run; it may have been deleted", run)
        return known

    def _hear(self, connection: Connection, runs: Iterable[str]) -> None:
        now = self._clock()
        due = sorted(run for run in runs if not 0 <= now - self._heard.get(run, -1e9) < _HEARD_EVERY_S)
        if due:
            connection.execute(update(RUNS).where(RUNS.c.id.in_(due)).values(heard=now))
            self._heard.update(dict.fromkeys(due, now))


# --- one function for each kind of record -----------------------------------------------------------------------------


def _create(connection: Connection, records: Received) -> None:
    rows = [
        {
            "id": run,
            "project": to_name(record.project),
            "name": to_name(record.name),
            "kind": to_name(record.kind),
            "state": QUEUED,
            "why": "",
            "created": to_time(record.time),
            "changed": to_time(record.time),
            "heard": 0.0,
            "config": to_json(record.config),
            "parent": to_text(record.parent),
            "parent_step": to_number(record.parent_step),
            "folder": to_text(record.folder),
            "archived": False,
            "owner_host": "",
            "owner_pid": 0,
            "owner_started": 0.0,
            "owner_boot": "",
        }
        for run, record in records
    ]
    connection.execute(insert(connection, RUNS).on_conflict_do_nothing(), rows)
    facts = [{"run": run, "facts": to_json(record.facts)} for run, record in records]
    connection.execute(insert(connection, FACTS).on_conflict_do_nothing(), facts)
    _label(connection, [(run, LabelsAre(record.labels)) for run, record in records])


def _own(connection: Connection, records: Received) -> None:
    owners = {
        run: {
            "owner_host": to_name(record.host),
            "owner_pid": record.pid,
            "owner_started": record.start_ticks,
            "owner_boot": to_text(record.boot),
        }
        for run, record in records
    }
    _change(connection, owners)


def _turn(connection: Connection, records: Received) -> None:
    for _, record in records:
        if record.state not in STATES:
            raise ValueError(f"the state of a run is one of {', '.join(STATES)}, not {record.state!r}")
    states = {
        run: {"state": record.state, "changed": to_time(record.time), "why": to_text(record.why)}
        for run, record in records
    }
    _change(connection, states)


def _configure(connection: Connection, records: Received) -> None:
    found = connection.execute(_CONFIGS, {"ids": sorted({run for run, _ in records})})
    configs = {run: from_json(config) for run, config in found}
    for run, record in records:
        configs[run] = {**configs[run], **record.values}
    _change(connection, {run: {"config": to_json(config)} for run, config in configs.items()})


def _label(connection: Connection, records: Received) -> None:
    is_there: dict[tuple[str, str], bool] = {}
    for run, record in records:
        is_there |= {(run, to_name(label)): True for label in record.added}
        is_there |= {(run, to_name(label)): False for label in record.removed}
    if added := [{"run": run, "label": label} for (run, label), stays in is_there.items() if stays]:
        connection.execute(insert(connection, LABELS).on_conflict_do_nothing(), added)
    if removed := [{"of_run": run, "of_label": label} for (run, label), stays in is_there.items() if not stays]:
        connection.execute(_REMOVE_LABEL, removed)


def _note(connection: Connection, records: Received) -> None:
    rows = [{"run": run, "text": to_text(record.text), "time": to_time(record.time)} for run, record in records]
    connection.execute(NOTES.insert(), rows)


def _keep_artifacts(connection: Connection, records: Received) -> None:
    rows = [
        {
            "run": run,
            "name": to_name(record.name),
            "path": to_text(record.path),
            "kind": to_name(record.kind),
            "size_bytes": record.size_bytes,
            "sha256": to_text(record.sha256),
            "time": to_time(record.time),
            "step": to_number(record.step),
            "media_type": to_text(record.media_type),
        }
        for run, record in records
    ]
    connection.execute(ARTIFACTS.insert(), rows)


def _keep_checkpoints(connection: Connection, records: Received) -> None:
    last: dict[tuple[str, float], CheckpointKept | CheckpointRemoved] = {
        (run, float(record.step)): record for run, record in records
    }
    kept = [
        {
            "run": run,
            "step": step,
            "path": to_text(record.path),
            "size_bytes": record.size_bytes,
            "time": to_time(record.time),
            "score": to_number(record.score),
        }
        for (run, step), record in last.items()
        if isinstance(record, CheckpointKept)
    ]
    _put(connection, CHECKPOINTS, ("run", "step"), kept)
    gone = [
        {"of_run": run, "of_step": step}
        for (run, step), record in last.items()
        if isinstance(record, CheckpointRemoved)
    ]
    if gone:
        connection.execute(_REMOVE_CHECKPOINT, gone)


def _note_attempts(connection: Connection, records: Received) -> None:
    began = [
        {
            "run": run,
            "number": record.number,
            "host": to_name(record.host),
            "pid": record.pid,
            "began": to_time(record.time),
            "from_step": to_number(record.from_step),
            "outcome": "",
            "ended": None,
            "cause": "",
            "failure_class": "",
            "at_step": None,
        }
        for run, record in records
        if isinstance(record, AttemptBegan)
    ]
    ended = [
        {
            "run": run,
            "number": record.number,
            "outcome": to_text(record.outcome),
            "ended": to_time(record.time),
            "cause": to_text(record.cause),
            "failure_class": to_text(record.failure_class),
            "at_step": to_number(record.at_step),
            # An attempt that died before it said that it began is there all the same.
            "host": "",
            "pid": 0,
            "began": to_time(record.time),
            "from_step": 0.0,
        }
        for run, record in records
        if isinstance(record, AttemptEnded)
    ]
    resumed = [
        {"of_run": run, "of_number": record.number, "new_step": to_number(record.from_step)}
        for run, record in records
        if isinstance(record, AttemptResumed)
    ]
    _put(connection, ATTEMPTS, ("run", "number"), began)  # every attempt begins before it ends
    if resumed:
        connection.execute(_SET_FROM_STEP, resumed)
    _put(connection, ATTEMPTS, ("run", "number"), ended, only_new=("host", "pid", "began", "from_step"))


def _tell(connection: Connection, records: Received) -> None:
    rows = [
        {
            "run": run,
            "kind": to_name(record.kind),
            "text": to_text(record.text),
            "time": to_time(record.time),
            "data": to_json(record.data),
        }
        for run, record in records
    ]
    connection.execute(EVENTS.insert(), rows)


def _change(connection: Connection, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Change columns of runs, the same ones of each."""
    columns = next(iter(rows.values()))
    statement = update(RUNS).where(RUNS.c.id == bindparam("of_run"))
    statement = statement.values({name: bindparam(f"new_{name}") for name in columns})
    # In the order of ids, in which all writers take the locks of PostgreSQL.
    changes = [
        {"of_run": run, **{f"new_{name}": value for name, value in values.items()}}
        for run, values in sorted(rows.items())
    ]
    connection.execute(statement, changes)


def _put(
    connection: Connection,
    table: Table,
    key: Collection[str],
    rows: Sequence[dict[str, Any]],
    only_new: Collection[str] = (),
) -> None:
    """Insert rows; where there is one with the same key, change it, but for the columns that are for new ones."""
    if rows:
        statement = insert(connection, table)
        changed = {name: statement.excluded[name] for name in rows[0] if name not in key and name not in only_new}
        connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=changed), rows)


_HANDLERS: dict[type, Callable[[Connection, Received], None]] = {
    OwnerIs: _own,
    StateIs: _turn,
    ConfigIs: _configure,
    NoteAdded: _note,
    LabelsAre: _label,
    ArtifactKept: _keep_artifacts,
    CheckpointKept: _keep_checkpoints,
    CheckpointRemoved: _keep_checkpoints,
    AttemptBegan: _note_attempts,
    AttemptEnded: _note_attempts,
    AttemptResumed: _note_attempts,
    EventHappened: _tell,
}
"""A function may take several kinds, if the order of their records counts."""
