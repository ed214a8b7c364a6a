"""What queries of a store return: one record for each thing that a run has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.html_table import StateCell, html_box, html_failure, html_headline, html_table
from ropewalk.quantities import counted, shown_moment
from ropewalk.tracking.records import QUEUED, RUNNING, AttemptEnded, OwnerIs

LOST = "lost"
"""The state that is shown of a running run whose owner is gone without a word; it is not stored."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, as a table shows it.

    Attributes:
        id: unique in all stores.
        project: the project that it belongs to.
        name: name that the user gave it, or that was made up.
        kind: "script", "trial", "search", "program", "trainer" or "population".
        state: one of the states of `records.STATES`, or "lost".
        why: the cause of a failure, or who asked for the state.
        created: when it was created, in seconds since the epoch, as all times.
        changed: when it took its state.
        heard: when the store last got a record of it, within ten seconds.
        config: its hyperparameters and other settings.
        labels: its labels, sorted.
        parent: id of the run that it belongs to or was forked from; empty if there is none.
        parent_step: step of the checkpoint from which it was forked.
        folder: folder of its artifacts and checkpoints.
        archived: whether lists leave it out.
        owner: the process that writes it; None if it never said.
    """

    id: str
    project: str
    name: str
    kind: str
    state: str
    why: str
    created: float
    changed: float
    heard: float
    config: dict[str, Any]
    labels: tuple[str, ...]
    parent: str
    parent_step: float | None
    folder: str
    archived: bool
    owner: OwnerIs | None

    def lasted_s(self, now: float) -> float:
        """Return how many seconds it has been going on at `now`, or has taken, to a tenth."""
        end = now if self.state in (QUEUED, RUNNING) else self.heard if self.state == LOST else self.changed
        return round(max(0.0, end - self.created), 1)

    def _repr_html_(self) -> str:
        facts = [("run", self.id), ("of", self.project), ("", self.kind), ("begun", shown_moment(self.created))]
        settings = [(name, str(value)) for name, value in self.config.items()]
        table = html_table(("setting", "value"), settings) if settings else ""
        return html_box(html_headline(self.name, self.state, facts), html_failure(self.why), table)


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A series of a metric, without its points.

    Attributes:
        group: the group, such as "" or "system".
        name: name of the metric.
        count: how many points it has.
        num_nan: how many of them are NaN.
        last: its last value; NaN if that is what was logged.
        last_step: the step of that.
        last_time: the time of that.
        min: the least value that is not NaN; NaN if there is none.
        max: the greatest.
        mean: the mean of values that are not NaN.
    """

    group: str
    name: str
    count: int
    num_nan: int
    last: float
    last_step: float
    last_time: float
    min: float
    max: float
    mean: float


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """A process that worked on a run.

    Attributes:
        number: from 1 on.
        host: its host.
        pid: its process id.
        began: when it began.
        from_step: the step of the checkpoint from which it went on.
        outcome: "done", "paused", "stopped", "failed" or "lost"; empty while it goes on.
        ended: when it ended; None while it goes on.
        cause: traceback, or what is known of its death.
        failure_class: what failed in the same way has the same class.
        at_step: the last step that it reported.
    """

    number: int
    host: str
    pid: int
    began: float
    from_step: float
    outcome: str
    ended: float | None
    cause: str
    failure_class: str
    at_step: float | None

    def lasted_s(self, now: float) -> float:
        """Return how many seconds it has been going on at `now`, or has taken, to a tenth.

        Its begin and its end may be of two hosts, whose clocks differ.
        """
        return round(max(0.0, (now if self.ended is None else self.ended) - self.began), 1)

    def ended_unseen(self) -> AttemptEnded:
        """Return the end of an attempt that goes on in the store, although its process and its writer are gone."""
        cause = f"process {self.pid} on {self.host} ended without a word"
        return AttemptEnded(self.number, LOST, time.time(), cause)


@dataclass(frozen=True, slots=True)
class EventRow:
    """An entry of a run's time line; its fields are those of `records.EventHappened`."""

    kind: str
    text: str
    time: float
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NoteRow:
    """A remark of the user."""

    text: str
    time: float


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """A file of a run; its fields are those of `records.ArtifactKept`."""

    name: str
    path: str
    kind: str
    size_bytes: int
    sha256: str
    time: float
    step: float | None
    media_type: str


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint of a run; its fields are those of `records.CheckpointKept`."""

    step: float
    path: str
    size_bytes: int
    time: float
    score: float | None


@dataclass(frozen=True, slots=True)
class RequestRow:
    """What was asked of the process that owns a run.

    Attributes:
        number: counts all requests of a store.
        run: id of the run.
        action: "pause", "stop" or the like.
        data: whatever the action needs.
        asked: when it was asked.
        answered: when it was answered; None while it is open.
        ok: whether it was done; None while it is open.
        answer: the answer for the user.
    """

    number: int
    run: str
    action: str
    data: dict[str, Any]
    asked: float
    answered: float | None
    ok: bool | None
    answer: str


def html_of_runs(runs: Sequence[RunRow], where: str, num: int) -> str:
    """Return the table of a store's latest runs, for notebooks.

    Args:
        runs: those that are shown.
        where: the store.
        num: how many it has.
    """
    rows = [
        (r.id, r.name, r.project, r.kind, StateCell(r.state), shown_moment(r.created), ", ".join(r.labels))
        for r in runs
    ]
    head = ("id", "name", "project", "kind", "state", "begun", "labels")
    return html_box(html_headline(where, "", [("", counted(num, "run"))]), html_table(head, rows))
