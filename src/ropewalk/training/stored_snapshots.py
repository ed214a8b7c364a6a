"""Snapshots in files, as a further copy besides those in the memory of peers, for this run alone.

They are pickles, and a folder may be shared with strangers. So no file is trusted by its name: the process that
writes a file sends its SHA-256 over its link to the launcher, which sends it to the process that reads the file, and
that process verifies the bytes before it unpickles them. State that outlives a run is in checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from ropewalk.atomic_files import write_new_file
from ropewalk.errors import CheckpointCorrupt
from ropewalk.pipeline.stages.snapshots import WorkerSnapshot
from ropewalk.processes.left_folders import FolderClaim, sweep
from ropewalk.transport.serialization import dumps_result, loads
from ropewalk.trusted_files import make_folder


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot in a file."""

    path: str
    size_bytes: int
    digest: str
    """SHA-256 of the file, in hexadecimal digits."""


def write(folder: str, epoch: int, snapshot: WorkerSnapshot) -> StoredSnapshot:
    """Write a snapshot into a new file; returns when it is on the disk.

    Args:
        folder: the folder of this run.
        epoch: the epoch that took the snapshot.
        snapshot: not released meanwhile.

    Returns:
        The path and digest of the file.

    Raises:
        OSError: the file cannot be written; nothing is left of it.
    """
    cut = snapshot.cut
    name = f"{snapshot.worker}-{epoch}-{cut.next_micro_batch}-{max(cut.versions, default=0)}"
    path = os.path.join(folder, name)
    payload = dumps_result(snapshot)
    parts = [payload.pickle, *payload.buffers]
    digest = hashlib.sha256()

    def seen() -> Iterator[bytes | memoryview]:
        for part in (struct.pack(f"<{len(parts) + 1}Q", len(parts), *map(len, parts)), *parts):
            digest.update(part)
            yield part

    size_bytes = write_new_file(path, seen())
    return StoredSnapshot(path, size_bytes, digest.hexdigest())


def read(stored: StoredSnapshot) -> WorkerSnapshot:
    """Read a stored snapshot.

    Args:
        stored: the path and digest of the file.

    Raises:
        OSError: the file cannot be read.
        CheckpointCorrupt: its bytes are not those that were written.
    """
    fd = os.open(stored.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        content = bytearray(file.read(stored.size_bytes + 1))
    if len(content) != stored.size_bytes or hashlib.sha256(content).hexdigest() != stored.digest:
        raise CheckpointCorrupt(
            f"the snapshot in {stored.path} is not the one that was written there: it has {len(content)} bytes, and "
            f"{stored.size_bytes} of another digest are expected; somebody has changed it, or the disk has"
        )
    (num,) = struct.unpack_from("<Q", content)
    ends = list(accumulate(struct.unpack_from(f"<{num}Q", content, 8), initial=8 * (num + 1)))
    head, *buffers = (memoryview(content)[start:end] for start, end in pairwise(ends))
    return loads(head, buffers)


class SnapshotFolder:
    """The folder for the snapshots of one run, within one that the user names.

    Args:
        parent: the user's folder; all processes must be able to reach it, like the folder of checkpoints.

    Raises:
        OSError: the folder cannot be made there.
    """

    def __init__(self, parent: Path) -> None:
        make_folder(parent)
        sweep([parent])
        self.path = Path(tempfile.mkdtemp(prefix="ropewalk-snapshots-", dir=parent.resolve()))
        self._claim = FolderClaim(self.path)

    def keep_only(self, wanted: Collection[StoredSnapshot]) -> None:
        """Remove all other snapshots; call it while none is being written."""
        paths = {one.path for one in wanted}
        for path in self.path.iterdir():
            if str(path) not in paths and "-" in path.name:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._claim.close()
