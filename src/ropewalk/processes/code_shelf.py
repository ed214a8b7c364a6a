"""The project's files on a host: unpacked once, used by every process that asks for them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ropewalk.processes.code_bundle import remap, remap_paths, unpack
from ropewalk.processes.messages import StartProcess


class CodeShelf:
    """Where the files of each project lie here.

    Args:
        folder: in which they are unpacked; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "code"
        self._roots: dict[str, str] = {}

    def put(self, id: str, data: bytes) -> None:
        """Unpack a project's files.

        Raises:
            OSError: there is no room for them.
            RopewalkError: they are no such files.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._roots[id] = str(unpack(data, self._folder))

    def arrange(self, start: StartProcess) -> StartProcess:
        """A request with the folder and the import path of this host."""
        root = self._roots.get(start.code)
        if root is None:
            return start
        folder = remap(start.folder, start.code_root, root)
        path = remap_paths(start.path, start.code_root, root)
        return msgspec.structs.replace(start, folder=folder, path=tuple(path))
