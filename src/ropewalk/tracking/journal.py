"""A journal of records that are not in their store yet: a file that outlives a writer that is killed.

    StoreWriter ─ every 50 ms ─▶ journal: one write of encoded records, 1 µs each
                └ less often ──▶ store: one transaction ─▶ journal is emptied
    a later writer of the store ─▶ journals whose writers are gone ─▶ store

A transaction costs about 0.1 ms for each series that it touches, however many points it adds. So a run that logs a
hundred metrics a thousand times a second must not have one every 50 ms, but may not lose more than that, either.

A journal is locked by its writer, whose end releases the lock, whatever the cause. It lies in a folder that only this
user can enter; its name tells to which store it belongs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ropewalk.atomic_files import is_at
from ropewalk.tracking.metric_columns import num_records
from ropewalk.tracking.records import ArtifactKept, EventHappened, MetricColumns, Metrics, NoteAdded, RunRecord
from ropewalk.tracking.store.column_values import to_json, to_name, to_text, to_time
from ropewalk.trusted_files import is_trusted_owner, make_private_folder

if TYPE_CHECKING:  # a store needs SQLAlchemy
    from ropewalk.tracking.store.store import RunStore

_log = logging.getLogger(__name__)
_FOLDER = ".journals"
"""Beside the folders of runs."""
_LENGTH = struct.Struct("<I")
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_ONCE = 5000
"""Records in one transaction, here and of a writer."""
_REFUSED = (TypeError, ValueError, OverflowError, RecursionError)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[RunRecord])


class RecordJournal:
    """The journal of one writer. No method raises because of a disk: what cannot be kept here waits in memory alone.

    Args:
        store: the store to which the records go.
    """

    def __init__(self, store: RunStore) -> None:
        folder = store.folder / _FOLDER
        self._path = folder / f"{_stem(store)}{os.urandom(6).hex()}"
        self._file = -1
        try:
            make_private_folder(folder)
            self._file = self._made([])
        except OSError as error:
            self._give_up(error)

    @property
    def is_open(self) -> bool:
        """Whether records can be kept."""
        return self._file >= 0

    def append(self, records: Sequence[RunRecord]) -> None:
        """Keep records until `clear`."""
        if self._file < 0 or not records:
            return
        try:
            _write(self._file, records)
        except OSError as error:
            self._give_up(error)

    def replace(self, records: Sequence[RunRecord]) -> None:
        """Keep these records in place of those so far: others have been given up, and would fill the disk."""
        if self._file < 0:
            return
        try:
            file = self._made(records)
        except OSError as error:
            self._give_up(error)
        else:
            os.close(self._file)
            self._file = file

    def clear(self) -> None:
        """Forget all records: they are in the store."""
        if self._file >= 0:
            try:
                os.ftruncate(self._file, 0)
            except OSError as error:
                self._give_up(error)

    def close(self, *, is_needed: bool = False) -> bool:
        """Close the journal, and remove it; may be called twice.

        Args:
            is_needed: leave it for a later writer: the store could not be written.

        Returns:
            Whether it is there still.
        """
        if self._file < 0:
            return False
        if not is_needed:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        os.close(self._file)
        self._file = -1
        return is_needed

    def leave_to_parent(self) -> None:
        """In a child after a fork: close it, and leave it and its lock to the parent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _made(self, records: Sequence[RunRecord]) -> int:
        """Make the file, with these records, and return its descriptor.

        It is locked before it has its name: whoever recovers would take one without a lock for that of a killed writer.
        """
        unnamed = self._path.with_name(f"new-{self._path.name}")
        file = os.open(unnamed, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for begin in range(0, len(records), _AT_ONCE):
                _write(file, records[begin : begin + _AT_ONCE])
            os.rename(unnamed, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unnamed)
            os.close(file)
            raise
        return file

    def _give_up(self, error: OSError) -> None:
        _log.debug("no journal at %s: %s", self._path, error)  # the store tells the user, if it cannot be written too
        if self._file >= 0:
            # Emptied, because its records go to the store by themselves; a later writer would add them again.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
            self.close()


def recover(store: RunStore) -> int:
    """Put into a store what is in journals whose writers are gone, and remove them.

    Args:
        store: the store.

    Returns:
        The number of records.

    Raises:
        StoreError: the store cannot be written; the journals stay.
    """
    num, folder = 0, store.folder / _FOLDER
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name.startswith(_stem(store)):
                num += _recover_one(folder / name, store)
    return num


def _recover_one(path: Path, store: RunStore) -> int:
    try:
        file = os.open(path, _FLAGS)
    except OSError:  # another process has just recovered it
        return 0
    try:
        if not is_trusted_owner(os.fstat(file).st_uid):
            return 0
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its writer is alive, or another process recovers it
            return 0
        if not is_at(file, path):  # its writer has replaced it meanwhile
            return 0
        with open(os.dup(file), "rb") as opened:
            content = opened.read()
        records, end = _decoded(content)
        records = records[_num_stored(records, store) :]
        for begin in range(0, len(records), _AT_ONCE):
            store.apply(records[begin : begin + _AT_ONCE])
        if end is None:
            os.unlink(path)
        else:
            kept = path.with_name(f"unreadable-{path.name}")
            os.rename(path, kept)
            _log.warning(
                "%s of the %s bytes that a killed writer left for the store cannot be read, and are kept in %s: they "
                "are damaged, or of another version of Ropewalk, which reads them if the file gets its name %s again",
                f"{len(content) - end:,}",
                f"{len(content):,}",
                kept,
                path.name,
            )
        return num_records(records)
    finally:
        os.close(file)


def _decoded(content: bytes) -> tuple[list[RunRecord], int | None]:
    """Decode what was appended, up to the first batch that cannot be read.

    Returns:
        The records, and where that batch begins; None if there is none, or if the writer was killed within it.
    """
    records: list[RunRecord] = []
    at = 0
    while at + _LENGTH.size <= len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        begin = at + _LENGTH.size
        if length > len(content) - begin:
            break
        if length == 0:  # no writer writes that: a page that a crash of the machine left without its content
            return records, at
        try:
            batch = _decoder.decode(content[begin : begin + length])
        except msgspec.MsgspecError:
            return records, at
        if not all(one.record.is_even for one in batch if isinstance(one.record, MetricColumns)):
            return records, at
        records += batch
        at = begin + length
    return records, None


def _num_stored(records: Sequence[RunRecord], store: RunStore) -> int:
    """Return how many of the first records are in the store already.

    Their writer was killed before it emptied the journal, after the last of its transactions, or after a part of them:
    there are several if many records have waited. What a store adds for each record tells: metrics by the time of their
    last point, events, notes and artifacts by their own. All other records only set something, and may be set again.
    """
    added = _AddedRows(store)
    is_newest = True
    for num in range(len(records), 0, -1):
        is_there = added.has(records[num - 1])
        if is_there is None:
            continue
        if is_there:
            return len(records) if is_newest and len(records) <= _AT_ONCE else num  # what follows was stored with it
        is_newest = False
    return 0


class _AddedRows:
    """Which records a store has added as rows of their own. Each run is read once.

    Args:
        store: the store.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._last_times: dict[str, dict[tuple[str, str], float]] = {}
        self._moments: dict[tuple[str, type], set[tuple[str, float, str]]] = {}

    def has(self, one: RunRecord) -> bool | None:
        """Return whether a record is there; None if it leaves no row of its own."""
        match one.record:
            case Metrics() | MetricColumns() as record if record.names:
                return self._has_points(one.run, record)
            case EventHappened(kind=kind, time=time, data=data) as record:
                return (to_name(kind), to_time(time), to_json(data)) in self._of(one.run, type(record))
            case NoteAdded(text=text, time=time) as record:
                return (to_text(text), to_time(time), "") in self._of(one.run, type(record))
            case ArtifactKept(name=name, time=time, sha256=digest) as record:
                return (to_name(name), to_time(time), to_text(digest)) in self._of(one.run, type(record))
            case _:
                return None

    def _has_points(self, run: str, record: Metrics | MetricColumns) -> bool:
        if run not in self._last_times:
            found = {(series.group, series.name): series.last_time for series in self._store.series(run)}
            self._last_times[run] = found
        group, name = record.group, record.names[-1]
        last = record.last_time if isinstance(record, MetricColumns) else record.time
        # Another launcher may have added later points since: only the point itself proves that it is there.
        is_old = self._last_times[run].get((group, name), -math.inf) >= last
        return is_old and last in self._store.points(run, name, group).times

    def _of(self, run: str, kind: type) -> set[tuple[str, float, str]]:
        """Return what distinguishes the events, notes or artifacts of a run from each other, as the store has it."""
        if (run, kind) not in self._moments:
            store = self._store
            if kind is EventHappened:
                found = {(event.kind, event.time, to_json(event.data)) for event in store.events(run)}
            elif kind is NoteAdded:
                found = {(note.text, note.time, "") for note in store.notes(run)}
            else:
                found = {(artifact.name, artifact.time, artifact.sha256) for artifact in store.artifacts(run)}
            self._moments[run, kind] = found
        return self._moments[run, kind]


def _write(file: int, records: Sequence[RunRecord]) -> None:
    try:
        content = _encoder.encode(records)
    except _REFUSED:  # of those that cannot be encoded the store will tell
        content = _encoder.encode([one for one in records if _is_encodable(one)])
    rest = memoryview(_LENGTH.pack(len(content)) + content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _is_encodable(record: RunRecord) -> bool:
    try:
        _encoder.encode(record)
    except _REFUSED:
        return False
    return True


def _stem(store: RunStore) -> str:
    return f"{hashlib.sha256(store.where.encode()).hexdigest()[:16]}-"


__all__ = ["RecordJournal", "recover"]
