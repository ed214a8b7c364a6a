"""The Python stacks of nodes, as shown by `ropewalk stack`.

A process prints the stacks of all its threads to its output on SIGUSR2 (with faulthandler, which works while C code
runs); they are read back from its output file. Nodes that are threads of this process are inspected directly.

Only threads that run user code are shown, without Ropewalk's outer frames.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from traceback import FrameSummary
from types import FrameType
from typing import Any

from ropewalk.calls.incoming import Turn
from ropewalk.program.node_context import NodeContext, contexts_here

Stack = list[FrameSummary]
"""The frames of a thread, the outermost first."""

_QUIET_S = 0.5
"""A dump without an end counts as complete when nothing was added for this time (seconds): it comes in pieces."""
_LAST_FRAME = "_run_module_as_main"
"""The outermost frame of the main thread, which comes last; faulthandler omits the outer frames of very deep stacks."""
_LOOK_S = 0.01
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_IDLE = "(none of its threads runs code of yours)\n"
_OUR_FOLDER = str(Path(__file__).parents[1])
_LIBRARY = os.path.dirname(os.__file__)
"""Folder of the standard library and the installed packages."""
_BEGINNINGS = ("<frozen ", threading.__file__)


def of_processes(files: Mapping[str, Path], ask: Callable[[str], object], timeout_s: float) -> dict[str, str]:
    """Ask processes for their stacks, and read the stacks from their output.

    Args:
        files: the output file of each process, by name.
        ask: sends SIGUSR2 to the process of a name.
        timeout_s: seconds to wait for the slowest.

    Returns:
        The text by name; for a process that did not answer, a sentence that says so.
    """
    offsets = {name: path.stat().st_size if path.exists() else 0 for name, path in files.items()}
    for path in set(files.values()):  # nodes may share a process
        ask(next(name for name in files if files[name] == path))
    due = time.monotonic() + timeout_s
    dumps: dict[str, tuple[list[Stack], float]] = {}
    missing = set(files)
    while missing and time.monotonic() < due:
        time.sleep(_LOOK_S)
        for name in list(missing):
            stacks, since = dumps.get(name, ([], 0.0))
            now = parse(_read_from(files[name], offsets[name]))
            if now != stacks:
                dumps[name] = stacks, since = now, time.monotonic()
            if is_whole(stacks) or (stacks and time.monotonic() - since > _QUIET_S):
                missing.discard(name)
    silent = f"(it did not answer within {timeout_s:g} s: it is stopped, or has ended)\n"
    return {name: _describe([("", stack) for stack in dumps[name][0]]) if name in dumps else silent for name in files}


def of_threads(program: str, node: str | None) -> dict[str, str]:
    """The stacks of a program's nodes that are threads of this process, and of the calls that they serve."""
    threads: dict[NodeContext, list[tuple[str, Stack]]] = {
        context: []
        for context in contexts_here()
        if context.program == program and node in (None, context.name, f"{context.name}.{context.replica}")
    }
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, and the only way
    for context, stacks in threads.items():
        frame = frames.get(context.thread)
        if frame:
            stacks.append(("", list(traceback.extract_stack(frame))))
    for frame in frames.values():
        turn = _turn_of(frame)
        context = getattr(turn and turn.served, "owner", None)
        if turn and context in threads:
            threads[context].append((f"In a call of {turn.label}:\n", list(traceback.extract_stack(frame))))
    return {f"{context.name}.{context.replica}": _describe(stacks) for context, stacks in threads.items()}


def of_output(text: str) -> str:
    """Return the stacks that a process printed, for a signal or in a crash, without Ropewalk's outer frames."""
    return _describe([("", stack) for stack in parse(text)])


def places() -> tuple[dict[int, str], dict[int, str]]:
    """The line of user code that each thread of this process has reached, such as "store.py:12 in push".

    Returns:
        Lines by the identity of the thread, and lines by the identity of the `Turn` that a thread runs.
    """
    of_threads: dict[int, str] = {}
    of_turns: dict[int, str] = {}
    for thread, innermost in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]  # as above
        frame: FrameType | None = innermost
        while frame and frame.f_code.co_filename.startswith((_OUR_FOLDER, _LIBRARY, "<frozen ")):
            frame = frame.f_back
        if frame:
            code = frame.f_code
            place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
            of_threads[thread] = place
            if turn := _turn_of(innermost):
                of_turns[id(turn)] = place
    return of_threads, of_turns


def parse(text: str) -> list[Stack]:
    """Find faulthandler's dump in the output of a process, between lines that it prints itself."""
    stacks: list[Stack] = []
    for line in text.split("\n"):
        if _THREAD.fullmatch(line):
            stacks.append([])
        elif stacks and (found := _FRAME.fullmatch(line)):
            stacks[-1].insert(0, FrameSummary(found["file"], int(found["line"]), found["function"], lookup_line=False))
    return stacks


def is_whole(stacks: Sequence[Stack]) -> bool:
    """Whether a dump has all threads: the main thread comes last, and ends with the outermost frame."""
    return bool(stacks and stacks[-1] and stacks[-1][0].name == _LAST_FRAME)


def _describe(threads: Iterable[tuple[str, Stack]]) -> str:
    """The threads that run user code, each under its heading."""
    shown = [(heading, _from_user_code(stack)) for heading, stack in threads]
    return "\n".join(heading + "".join(traceback.format_list(stack)) for heading, stack in shown if stack) or _IDLE


def _from_user_code(stack: Stack) -> Stack:
    for index, frame in enumerate(stack):
        if not frame.filename.startswith((_OUR_FOLDER, *_BEGINNINGS)):
            return stack[index:]
    return []


def _turn_of(frame: FrameType | None) -> Turn | None:
    """The turn that a thread runs."""
    while frame:
        if frame.f_code.co_name == "run":
            turn: Any = frame.f_locals.get("self")
            if isinstance(turn, Turn):
                return turn
        frame = frame.f_back
    return None


def _read_from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")
    except FileNotFoundError:  # the process has printed nothing yet
        return ""
