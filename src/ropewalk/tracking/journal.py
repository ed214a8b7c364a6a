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

from ropewalk.tracking.metric_columns import num_records
from ropewalk.tracking.records import MetricColumns, Metrics, RunRecord
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
            # Locked before it has its name: whoever recovers would take one without a lock for that of a killed writer.
            unnamed = folder / f"new-{self._path.name}"
            self._file = os.open(unnamed, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(unnamed, self._path)
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
            content = _encoder.encode(records)
        except _REFUSED:  # of those that cannot be encoded the store will tell
            content = _encoder.encode([one for one in records if _is_encodable(one)])
        rest = memoryview(_LENGTH.pack(len(content)) + content)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self._give_up(error)

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
    there are several if many records have waited. Metrics tell, by the time of their last point.
    """
    last_times: dict[str, dict[tuple[str, str], float]] = {}
    is_newest = True
    for num in range(len(records), 0, -1):
        run, record = records[num - 1].run, records[num - 1].record
        if not (isinstance(record, Metrics | MetricColumns) and record.names):
            continue
        if run not in last_times:
            last_times[run] = {(series.group, series.name): series.last_time for series in store.series(run)}
        group, name = record.group, record.names[-1]
        last = record.last_time if isinstance(record, MetricColumns) else record.time
        # Another launcher may have added later points since: only the point itself proves that it is there.
        if last_times[run].get((group, name), -math.inf) >= last and last in store.points(run, name, group).times:
            return len(records) if is_newest and len(records) <= _AT_ONCE else num  # what follows was stored with it
        is_newest = False
    return 0


def _is_encodable(record: RunRecord) -> bool:
    try:
        _encoder.encode(record)
    except _REFUSED:
        return False
    return True


def _stem(store: RunStore) -> str:
    return f"{hashlib.sha256(store.where.encode()).hexdigest()[:16]}-"


__all__ = ["RecordJournal", "recover"]
