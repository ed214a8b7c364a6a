"""The Python stacks of nodes: what `ropewalk stack` shows.

A process prints the stacks of all its threads on SIGUSR2 (faulthandler, which works
while C code runs), into the file of its output; from there they are read back.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

#: A stack is complete when nothing was added for so long.
_QUIET_S = 0.05
_LOOK_S = 0.01


def of_processes(files: Mapping[str, Path], ask: Callable[[str], object], timeout_s: float) -> dict[str, str]:
    """Ask processes for their stacks, and read what they print.

    Args:
        files: where the output of each is kept, by name.
        ask: sends SIGUSR2 to the process of a name.
        timeout_s: seconds to wait for the slowest.

    Returns:
        The text by name; one that says so for a process that did not answer.
    """
    files = {name: path for name, path in files.items() if path.exists()}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    for name in {path: name for name, path in reversed(files.items())}.values():  # once for nodes that share a process
        ask(name)
    due = time.monotonic() + timeout_s
    found: dict[str, str] = {}
    seen: dict[str, tuple[int, float]] = {}
    while len(found) < len(files) and time.monotonic() < due:
        for name, path in files.items():
            size = path.stat().st_size
            last, since = seen.get(name, (-1, 0.0))
            if size != last:
                seen[name] = size, time.monotonic()
            elif name not in found and size > sizes[name] and time.monotonic() - since > _QUIET_S:
                found[name] = _read_from(path, sizes[name])
        time.sleep(_LOOK_S)
    silent = f"(it did not answer within {timeout_s:g} s: it is stopped, or has ended)\n"
    return {name: found.get(name, silent) for name in files}


def of_threads(names: Sequence[str], node: str | None) -> dict[str, str]:
    """The stacks of the nodes' own threads in this process; their calls run in threads of the host."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, and the only way
    stacks: dict[str, str] = {}
    for thread in threading.enumerate():
        name = thread.name.rpartition(".")[0]
        if name in names and node in (None, name):
            frame = frames.get(thread.ident or 0)
            stacks[thread.name] = "".join(traceback.format_stack(frame)) if frame else "(it has just ended)\n"
    return stacks


def _read_from(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")
