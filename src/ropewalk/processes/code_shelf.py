"""The project's files on a host: unpacked once, used by every process that asks for them."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from ropewalk.processes.messages import StartProcess
from ropewalk.transport.frames import Part


class CodeShelf:
    """Where the files of each project are on this host.

    They are unpacked in a thread: thousands of files take seconds, in which the agent must answer heartbeats, or it
    counts as lost. Everything else is for the thread of the loop. What unpacks is imported then: most agents are
    on the launcher's host, and unpack nothing.

    Args:
        folder: folder into which they are unpacked; made if missing.
        call_soon: `call_soon` of the loop.
    """

    def __init__(self, folder: Path, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._folder = folder / "code"
        self._call_soon = call_soon
        self._roots: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._waiting: dict[str, list[Callable[[str], object]]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._closed = threading.Event()

    def expect(self, id: str) -> None:
        """Note that a project's files are on their way: processes wait for them."""
        self._waiting.setdefault(id, [])

    def put(self, id: str, data: Part, problem: str = "") -> None:
        """Start unpacking a project's files; `problem` says why they did not come, if they did not."""
        if id in self._threads:
            return
        self.expect(id)
        if problem:
            self._tell(id, "", self._problem(problem))
            return
        try:
            from ropewalk.processes.code_bundle import unpack  # not in the thread: this one may fork meanwhile

            job = unpack, id, bytes(data)
            thread = threading.Thread(target=self._unpack, args=job, name="rw-unpack", daemon=True)
            thread.start()
        except Exception as error:  # no memory or threads: those who wait for the files would do so for ever
            self._tell(id, "", self._problem(error))
            return
        self._threads[id] = thread

    def when_there(self, id: str, then: Callable[[str], object]) -> None:
        """Call `then` with why there are no such files, or with "" when they are here.

        The call is made at once, unless the files are being unpacked.
        """
        if id in self._waiting:
            self._waiting[id].append(then)
        else:
            then(self._problems.get(id, ""))

    def arrange(self, start: StartProcess) -> StartProcess:
        """Return a request with the folder and the import path of this host."""
        root = self._roots.get(start.code)
        if root is None:
            return start
        from ropewalk.processes.code_bundle import remap, remap_paths

        folder = remap(start.folder, start.code_root, root)
        path = remap_paths(start.path, start.code_root, root)
        return msgspec.structs.replace(start, folder=folder, path=tuple(path))

    def close(self) -> None:
        """Stop unpacking, and wait until no thread writes any more."""
        self._closed.set()
        for thread in self._threads.values():
            thread.join()

    def _unpack(self, unpack: Callable[..., Path], id: str, data: bytes) -> None:
        root = problem = ""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            root = str(unpack(data, self._folder, stopped=self._closed.is_set))
        except Exception as error:  # whatever it is, such as a lack of memory: processes wait for the files
            problem = self._problem(error)
        self._call_soon(lambda: self._there(id, root, problem))

    def _problem(self, error: Exception | str) -> str:
        why = str(error) or type(error).__name__
        return f"the project's files could not be unpacked in {self._folder} on {platform.node()}: {why}"

    def _there(self, id: str, root: str, problem: str) -> None:
        self._threads.pop(id).join()  # the agent has one thread again when it forks
        self._tell(id, root, problem)

    def _tell(self, id: str, root: str, problem: str) -> None:
        if problem:
            self._problems[id] = problem
        else:
            self._roots[id] = root
            self._problems.pop(id, None)
        for then in self._waiting.pop(id):
            then(problem)
