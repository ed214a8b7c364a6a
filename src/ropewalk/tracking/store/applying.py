"""Records become rows: what `RunStore.apply` does within its transaction.

Metrics of a whole batch are stored together; other records one by one, in their order. Records of a run that the store
does not have, such as one that was deleted while its process goes on, are dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, select, update

from ropewalk.tracking.records import (
    DONE,
    FAILED,
    PAUSED,
    QUEUED,
    STATES,
    STOPPED,
    ArtifactKept,
    AttemptBegan,
    AttemptEnded,
    CheckpointKept,
    CheckpointRemoved,
    ConfigIs,
    EventHappened,
    LabelsAre,
    Metrics,
    NoteAdded,
    OwnerIs,
    RunCreated,
    RunRecord,
    StateIs,
)
from ropewalk.tracking.store.column_values import from_json, to_json, to_number, to_text, to_time
from ropewalk.tracking.store.databases import insert
from ropewalk.tracking.store.metric_rows import SeriesCache, add_points, merge_all, transposed
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
        metrics: list[tuple[str, Metrics]] = []
        others: list[RunRecord] = []
        for one in batch:
            if type(one.record) is Metrics:
                metrics.append((one.run, one.record))
            else:
                others.append(one)
                if type(one.record) is RunCreated:
                    _create(connection, one.run, one.record)
        known = self._known(connection, {one.run for one in batch})
        if self._dropped:
            metrics = [(run, record) for run, record in metrics if run in known]
            others = [one for one in others if one.run in known]
        if points := transposed(metrics):
            add_points(connection, points, self._series)
        for one in others:
            if type(one.record) is not RunCreated:
                _HANDLERS[type(one.record)](connection, one.run, one.record)
        resting = {one.run for one in others if isinstance(one.record, StateIs) and one.record.state in _RESTING}
        if resting:
            merge_all(connection, resting)
            self._series.forget_runs(resting)
        self._hear(connection, known)

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


def _create(connection: Connection, run: str, record: RunCreated) -> None:
    row = {
        "id": run,
        "project": to_text(record.project),
        "name": to_text(record.name),
        "kind": to_text(record.kind),
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
    connection.execute(insert(connection, RUNS).on_conflict_do_nothing(), [row])
    facts = {"run": run, "facts": to_json(record.facts)}
    connection.execute(insert(connection, FACTS).on_conflict_do_nothing(), [facts])
    _label(connection, run, LabelsAre(record.labels))


def _own(connection: Connection, run: str, record: OwnerIs) -> None:
    _change(
        connection,
        run,
        owner_host=to_text(record.host),
        owner_pid=record.pid,
        owner_started=to_time(record.started),
        owner_boot=to_text(record.boot),
    )


def _turn(connection: Connection, run: str, record: StateIs) -> None:
    if record.state not in STATES:
        raise ValueError(f"the state of a run is one of {', '.join(STATES)}, not {record.state!r}")
    _change(connection, run, state=record.state, changed=to_time(record.time), why=to_text(record.why))


def _configure(connection: Connection, run: str, record: ConfigIs) -> None:
    query = select(RUNS.c.config).where(RUNS.c.id == run).with_for_update()
    before = from_json(connection.execute(query).scalar_one())
    _change(connection, run, config=to_json({**before, **record.values}))


def _label(connection: Connection, run: str, record: LabelsAre) -> None:
    if record.added:
        rows = [{"run": run, "label": to_text(label)} for label in record.added]
        connection.execute(insert(connection, LABELS).on_conflict_do_nothing(), rows)
    if record.removed:
        removed = [to_text(label) for label in record.removed]
        connection.execute(delete(LABELS).where(LABELS.c.run == run, LABELS.c.label.in_(removed)))


def _note(connection: Connection, run: str, record: NoteAdded) -> None:
    connection.execute(NOTES.insert(), [{"run": run, "text": to_text(record.text), "time": to_time(record.time)}])


def _keep_artifact(connection: Connection, run: str, record: ArtifactKept) -> None:
    row = {
        "run": run,
        "name": to_text(record.name),
        "path": to_text(record.path),
        "kind": to_text(record.kind),
        "size_bytes": record.size_bytes,
        "sha256": to_text(record.sha256),
        "time": to_time(record.time),
        "step": to_number(record.step),
        "media_type": to_text(record.media_type),
    }
    connection.execute(ARTIFACTS.insert(), [row])


def _keep_checkpoint(connection: Connection, run: str, record: CheckpointKept) -> None:
    values = {
        "path": to_text(record.path),
        "size_bytes": record.size_bytes,
        "time": to_time(record.time),
        "score": to_number(record.score),
    }
    _put(connection, CHECKPOINTS, {"run": run, "step": float(record.step)}, values)


def _remove_checkpoint(connection: Connection, run: str, record: CheckpointRemoved) -> None:
    connection.execute(delete(CHECKPOINTS).where(and_(CHECKPOINTS.c.run == run, CHECKPOINTS.c.step == record.step)))


def _begin_attempt(connection: Connection, run: str, record: AttemptBegan) -> None:
    values = {
        "host": to_text(record.host),
        "pid": record.pid,
        "began": to_time(record.time),
        "from_step": to_number(record.from_step),
        "outcome": "",
        "ended": None,
        "cause": "",
        "failure_class": "",
        "at_step": None,
    }
    _put(connection, ATTEMPTS, {"run": run, "number": record.number}, values)


def _end_attempt(connection: Connection, run: str, record: AttemptEnded) -> None:
    values = {
        "outcome": to_text(record.outcome),
        "ended": to_time(record.time),
        "cause": to_text(record.cause),
        "failure_class": to_text(record.failure_class),
        "at_step": to_number(record.at_step),
    }
    # An attempt that died before it said that it began is there all the same.
    unsaid = {"host": "", "pid": 0, "began": to_time(record.time), "from_step": 0.0}
    _put(connection, ATTEMPTS, {"run": run, "number": record.number}, values, only_new=unsaid)


def _tell(connection: Connection, run: str, record: EventHappened) -> None:
    row = {
        "run": run,
        "kind": to_text(record.kind),
        "text": to_text(record.text),
        "time": to_time(record.time),
        "data": to_json(record.data),
    }
    connection.execute(EVENTS.insert(), [row])


def _change(connection: Connection, run: str, **columns: Any) -> None:
    connection.execute(update(RUNS).where(RUNS.c.id == run).values(**columns))


def _put(
    connection: Connection,
    table: Any,
    key: dict[str, Any],
    values: dict[str, Any],
    only_new: dict[str, Any] | None = None,
) -> None:
    """Insert a row, or change the one that has the key."""
    statement = insert(connection, table).values({**key, **values, **(only_new or {})})
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=values))


_HANDLERS: dict[type, Callable[[Connection, str, Any], None]] = {
    OwnerIs: _own,
    StateIs: _turn,
    ConfigIs: _configure,
    NoteAdded: _note,
    LabelsAre: _label,
    ArtifactKept: _keep_artifact,
    CheckpointKept: _keep_checkpoint,
    CheckpointRemoved: _remove_checkpoint,
    AttemptBegan: _begin_attempt,
    AttemptEnded: _end_attempt,
    EventHappened: _tell,
}
