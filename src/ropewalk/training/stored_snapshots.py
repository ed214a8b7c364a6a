"""Snapshots in files, as a further copy beside those in the memory of peers, for this run alone.

They are pickles, and a folder may be shared with strangers. So nothing is read by its name alone: the process that
writes a file tells its SHA-256 over its link to the launcher, which tells it to the process that reads it, and
that process looks at the bytes before it unpickles them. For what outlives a run there are checkpoints.
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
from ropewalk.program.left_folders import FolderClaim, sweep
from ropewalk.transport.serialization import dumps_result, loads
from ropewalk.trusted_files import make_folder


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot in a file."""

    path: str
    size_bytes: int
    #: SHA-256 of the file, in hexadecimal digits.
    digest: str


def write(folder: str, epoch: int, snapshot: WorkerSnapshot) -> StoredSnapshot:
    """Write a snapshot into a new file; returns when it is on the disk.

    Args:
        folder: the run's own.
        epoch: that took it.
        snapshot: not released meanwhile.

    Raises:
        OSError: it cannot be written; nothing is left of it.
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
    """The snapshot that was written.

    Raises:
        OSError: the file cannot be read.
        CheckpointCorrupt: its bytes are others than those that were written.
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
        parent: all processes must reach it, as they must reach the folder of checkpoints.

    Raises:
        OSError: it cannot be made there.
    """

    def __init__(self, parent: Path) -> None:
        make_folder(parent)
        sweep([parent])
        self.path = Path(tempfile.mkdtemp(prefix="ropewalk-snapshots-", dir=parent.resolve()))
        self._claim = FolderClaim(self.path)

    def keep_only(self, wanted: Collection[StoredSnapshot]) -> None:
        """Remove all other snapshots; none is being written."""
        paths = {one.path for one in wanted}
        for path in self.path.iterdir():
            if str(path) not in paths and "-" in path.name:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._claim.close()
