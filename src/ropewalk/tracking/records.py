"""Records: the one form in which everything about a run reaches its store.

    Run.log, .note, .checkpoint, ...  ─▶ RunRecord ─▶ RecordSink ─▶ ... ─▶ StoreWriter ─▶ RunStore.apply

A process of Ropewalk sends its records to its launcher through a pipe that its agent reads to the end, also after the
process was killed; a script hands them to the writer in its own process. Nothing but the writer writes to a store.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from ropewalk.supervision.failure import DeathRecord

TRAINING, VALIDATION, SYSTEM, TABLE = "", "validation", "system", "table"
"""Groups of metrics: the default, own measurements on held-out data, use of the machine, rows of a printed table."""

QUEUED, RUNNING, PAUSED, DONE, FAILED, STOPPED = "queued", "running", "paused", "done", "failed", "stopped"
"""States of a run. A run whose owner is gone without a word is shown as "lost", which is not a stored state."""
STATES = (QUEUED, RUNNING, PAUSED, DONE, FAILED, STOPPED)

BEST_TRIAL = "best trial"
"""Metric of a search: the number of its best trial so far, a name that has no mean."""


class RunCreated(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """A run exists from here on; the first record of a run."""

    project: str
    name: str
    kind: str
    """What writes it: "script", "trial", "search", "program", "trainer", "population" or "experiment"."""
    time: float
    """Seconds since the epoch, as in all records."""
    config: dict[str, Any]
    """Hyperparameters and other settings, as JSON can represent them; nested dictionaries are kept."""
    facts: dict[str, Any]
    """Git commit and diff, packages, argv, working folder, host, user, Python, seed: see `facts.py`."""
    labels: list[str] = []
    parent: str = ""
    """Id of the run that it belongs to, such as the search of a trial, or from which it was forked."""
    parent_step: float | None = None
    """Step of the checkpoint from which it was forked; None if it began by itself."""
    folder: str = ""
    """Folder of its artifacts and checkpoints."""


class OwnerIs(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """The process that writes the run from here on: by this the store knows when a run is lost."""

    host: str
    pid: int
    start_ticks: int
    """When that process started, in clock ticks since the boot: process ids are reused."""
    boot: str
    """Boot id of the kernel that counts these process ids."""


class StateIs(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """The run changes its state."""

    state: str
    time: float
    why: str = ""
    """The cause of a failure, or who asked; empty if it speaks for itself."""


def packed(values: Collection[float]) -> bytes:
    """Return numbers as float64, little-endian.

    Raises:
        TypeError: a value is no number, or is beyond the range of float64.
    """
    try:
        return struct.pack(f"<{len(values)}d", *values)
    except struct.error as error:
        raise TypeError(f"numbers of metrics: {error}") from None


def unpacked(numbers: bytes) -> list[float]:
    """Return the numbers that were `packed`.

    Raises:
        ValueError: the bytes are not those of whole numbers.
    """
    if len(numbers) % 8:
        raise ValueError(f"{len(numbers)} bytes are not a whole number of values of 8 bytes")
    return list(struct.unpack(f"<{len(numbers) // 8}d", numbers))


class Metrics(msgspec.Struct, tag=4, array_like=True, frozen=True, gc=False):
    """Some numbers of one moment.

    Thousands wait for a transaction at times; with `gc=False` the garbage collector does not look at them again and
    again, because they cannot be part of a cycle. Nor does it look at the numbers if they are `packed`.
    """

    group: str
    names: list[str]
    numbers: list[float] | bytes
    """As many as names, as a list or `packed`. NaN and infinities are kept."""
    step: float
    time: float

    @property
    def is_even(self) -> bool:
        """Whether there are as many numbers as names."""
        size = 8 if type(self.numbers) is bytes else 1
        return len(self.numbers) == size * len(self.names)

    @property
    def values(self) -> list[float]:
        """The numbers as a list.

        Raises:
            ValueError: the bytes are not those of whole numbers.
        """
        return unpacked(self.numbers) if isinstance(self.numbers, bytes) else self.numbers


class MetricColumns(msgspec.Struct, tag=14, array_like=True, frozen=True, gc=False):
    """Metrics of one run and one group with the same names, in their order."""

    group: str
    names: list[str]
    numbers: bytes
    """Those of all records, `packed`, one record after the other."""
    steps: bytes
    """One of each record, `packed`."""
    times: bytes

    @property
    def is_even(self) -> bool:
        """Whether the columns fit to each other and have rows."""
        rows = [len(self.steps) / 8, len(self.times) / 8]
        return rows[0] == rows[1] > 0 and len(self.numbers) == 8 * len(self.names) * rows[0]

    @property
    def num_rows(self) -> int:
        """How many records it stands for."""
        return len(self.steps) // 8

    @property
    def last_time(self) -> float:
        """The time of the last record, of which there is one at least."""
        return unpacked(self.times[-8:])[0]


class ConfigIs(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Settings that are added, or replaced, by name."""

    values: dict[str, Any]


class NoteAdded(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """A remark of the user."""

    text: str
    time: float


class LabelsAre(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """Labels that are added and removed."""

    added: list[str]
    removed: list[str] = []


class ArtifactKept(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """A file of the run, in its folder or where it always was."""

    name: str
    path: str
    kind: str
    """ "file" or "image"."""
    size_bytes: int
    sha256: str
    time: float
    step: float | None = None
    media_type: str = ""


class CheckpointKept(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """A complete checkpoint is in the run's folder."""

    step: float
    path: str
    size_bytes: int
    time: float
    score: float | None = None
    """Value of the metric that decides which checkpoint is best, if that policy is chosen."""


class CheckpointRemoved(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """A checkpoint was deleted by the policy."""

    step: float


class AttemptBegan(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """A process begins to work on the run."""

    number: int
    """From 1 on."""
    host: str
    pid: int
    time: float
    from_step: float = 0
    """The step of the checkpoint from which it goes on; 0: from the beginning."""


class AttemptEnded(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """That process has ended its work."""

    number: int
    outcome: str
    """ "done", "paused", "stopped", "failed" (an exception), "lost" (the process died)."""
    time: float
    cause: str = ""
    """Traceback, or what is known of the death, with the last output."""
    failure_class: str = ""
    """What failed in the same way has the same class; empty unless it failed or was lost."""
    at_step: float = 0
    """The last step that it reported."""


class AttemptResumed(msgspec.Struct, tag=15, array_like=True, frozen=True):
    """What that process does goes on from a checkpoint of its own, which it has loaded since it began."""

    number: int
    from_step: float


class EventHappened(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """Something that belongs on the run's time line: a join, a death, a retry, a preemption, a plan, a decision."""

    kind: str
    text: str
    time: float
    data: dict[str, Any] = {}

    @classmethod
    def of_death(cls, text: str, record: DeathRecord) -> EventHappened:
        """Return the event of a death that happened now, with all that is known of it."""
        return cls("death", text, time.time(), msgspec.to_builtins(record))


OtherRecord = (
    RunCreated
    | OwnerIs
    | StateIs
    | ConfigIs
    | NoteAdded
    | LabelsAre
    | ArtifactKept
    | CheckpointKept
    | CheckpointRemoved
    | AttemptBegan
    | AttemptEnded
    | AttemptResumed
    | EventHappened
)
"""All but `Metrics`, which come by the thousand and have a decoder of their own."""
Record = Metrics | OtherRecord


class RunRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record, and the run to which it belongs."""

    run: str
    record: Record | MetricColumns
    """Columns only between a writer, its journal and its store: see `metric_columns.py`."""


class RecordSink(Protocol):
    """Where a run puts its records."""

    def put(self, run: str, record: Record) -> None:
        """Take a record, from any thread. Never waits for a disk, and never raises because a store cannot be written.

        Args:
            run: id of the run.
            record: the record.
        """
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until all records so far are stored, or on their way out of this process where it cannot lose them.

        Args:
            timeout_s: seconds.

        Returns:
            Whether they are.
        """
        ...

    def settle(self, timeout_s: float) -> bool:
        """Wait until none of the records so far can be lost with this process; a file that outlives it is enough.

        Args:
            timeout_s: seconds.

        Returns:
            Whether that is so.
        """
        ...
