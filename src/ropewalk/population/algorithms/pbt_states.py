"""Files of members' states: workers write and read them, the launcher knows their names and removes them.

    worker     .member-0003-interval-000012-5f...e1.state.<boot>-6a...c0 ─▶ fsync ─▶ member-0003-...-5f...e1.state
    launcher   removes files without a `StateFile` object in its process (members, incumbents, candidates) that no kept
               checkpoint names, unless the interval may be under way

A worker that is killed leaves a file whose name starts with a dot, which is removed the same way. A name ends with a
digest of the state: if two processes ever write the same interval, each reads the file that its own launcher was told.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections import deque
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from ropewalk.argument_kinds import check_number
from ropewalk.population.state_file import read_state, write_state
from ropewalk.transport.pickle_with_main import dumps_with_code
from ropewalk.transport.serialization import loads
from ropewalk.trusted_files import make_private_folder

_FILE = re.compile(r"\.?member-(\d+)-interval-(\d+)-[0-9a-f]{16}\.state(\.[0-9a-f]+-[0-9a-f]{8})?")


_files: WeakValueDictionary[tuple[str, str], StateFile] = WeakValueDictionary()
_lock = threading.Lock()


class StateRef(Protocol):
    """A reference to a state: small, picklable, equal to its copies."""

    def get(self) -> Any:
        """Return a copy of the state, which belongs to the caller."""
        ...


class StateFile:
    """A state in a file. A process has one object per file: while the object exists, the file is kept."""

    __slots__ = ("__weakref__", "folder", "name")

    folder: str
    name: str

    def __new__(cls, folder: str, name: str) -> StateFile:
        """Return the existing object for this file, or a new one."""
        with _lock:
            known = _files.get((folder, name))
            if known is None:
                known = _files[folder, name] = super().__new__(cls)
                known.folder, known.name = folder, name
            return known

    def __reduce__(self) -> Any:
        return StateFile, (self.folder, self.name)

    def __repr__(self) -> str:
        return f"StateFile({self.name})"

    def get(self) -> Any:
        """Read the state.

        Raises:
            FileNotFoundError: the state is lost.
            FileNotTrusted: another user could have written it.
            CheckpointCorrupt: the file is damaged.
        """
        tree = read_state(Path(self.folder, self.name))
        return loads(tree["pickle"], map(bytearray, tree["buffers"]))  # writable: training changes states in place


def write_file(folder: str, member: int, interval: int, state: Any) -> StateFile:
    """Write the state of a member after an interval, atomically.

    Args:
        folder: the folder of the states.
        member: number of the member.
        interval: number of the interval.
        state: any picklable state.

    Returns:
        The reference to the file.

    Raises:
        OSError: the file cannot be written. This includes `FileNotTrusted`, if other users could change files in the
            folder.
        NotPicklable: the state cannot be saved; the message names the part.
    """
    payload = dumps_with_code(state, what=f"the state of member {member}")
    buffers = [bytes(buffer) for buffer in payload.buffers]
    digest = hashlib.blake2b(payload.pickle, digest_size=8)
    for buffer in buffers:
        digest.update(buffer)
    file = StateFile(folder, f"member-{member:04d}-interval-{interval:06d}-{digest.hexdigest()}.state")
    make_private_folder(folder)
    write_state(Path(folder, file.name), {"pickle": payload.pickle, "buffers": buffers})
    return file


class StateFolder:
    """The launcher's view of the folder: decides which files are still needed.

    Args:
        folder: folder shared by all hosts, and by no other run; None: states are stored elsewhere, and cannot be saved.
        keep: number of the last checkpoints whose files are kept.
    """

    def __init__(self, folder: str | Path | None, keep: int) -> None:
        check_number("keep", keep, Integral, "a whole number", least=1, required=True)
        self.path = None if folder is None else str(Path(folder).absolute())
        self._saved: deque[list[str]] = deque(maxlen=keep)

    def remove(self, next_intervals: Sequence[int]) -> None:
        """Remove files that are no longer needed.

        Args:
            next_intervals: the next number of each member; files of that and later intervals may be in progress.
        """
        if self.path is None:
            return
        needed = set(self._names()).union(*self._saved)
        with contextlib.suppress(OSError):  # the folder may not exist yet; a failed removal is repeated next time
            for path in list(Path(self.path).iterdir()):
                found = _FILE.fullmatch(path.name)
                if not found or path.name in needed or int(found[1]) >= len(next_intervals):
                    continue
                if int(found[2]) < next_intervals[int(found[1])]:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def save(self, states: Sequence[StateRef | None]) -> dict[str, Any]:
        """Return names for a checkpoint, whose files are kept until `keep` further checkpoints were saved.

        Raises:
            ValueError: the states are in the memory of the hosts and cannot be named.
        """
        for state in states:
            if state is not None and not isinstance(state, StateFile):
                raise ValueError(
                    "states of members lie in the memory of the hosts and would be missing from a checkpoint; give the "
                    "algorithm folder=..., then workers write them to files"
                )
        self._saved.append(self._names())
        names = [state.name if isinstance(state, StateFile) else None for state in states]
        return {"names": names, "saved": list(self._saved)}

    def load(self, state: dict[str, Any]) -> list[StateFile | None]:
        """Return the references to the files that `save` named.

        Raises:
            ValueError: there is no folder.
        """
        if self.path is None and any(state["names"]):
            raise ValueError("the checkpoint names files of states; give the algorithm the folder=... that they are in")
        self._saved = deque((list(names) for names in state["saved"]), maxlen=self._saved.maxlen)
        return [None if name is None else StateFile(str(self.path), name) for name in state["names"]]

    def _names(self) -> list[str]:
        return sorted(name for folder, name in list(_files.keys()) if folder == self.path)
