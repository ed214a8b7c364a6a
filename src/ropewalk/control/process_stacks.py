"""The Python stacks of processes, as `ropewalk stack` and the page show them.

A process prints the stacks of all its threads to its output on SIGUSR2 (with faulthandler, which works while C code
runs); they are read back from its output file.

Only threads that run user code are shown, without Ropewalk's outer frames.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from traceback import FrameSummary

from ropewalk.trusted_files import open_output

Stack = list[FrameSummary]
"""The frames of a thread, the outermost first."""

OUR_FOLDER = str(Path(__file__).parents[1])
_QUIET_S = 0.5
"""A dump without an end counts as complete when nothing was added for this time (seconds): it comes in pieces."""
_LAST_FRAME = "_run_module_as_main"
"""The outermost frame of the main thread, which comes last; faulthandler omits the outer frames of very deep stacks."""
_LOOK_S = 0.01
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_IDLE = "(none of its threads runs code of yours)\n"
_BEGINNINGS = ("<frozen ", threading.__file__)
_NUM_INNER = 3
"""How many of Ropewalk's frames are shown below the user's code that waits in them: they say what it called."""


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
    return {name: described([("", stack) for stack in dumps[name][0]]) if name in dumps else silent for name in files}


def of_output(text: str) -> str:
    """Return the stacks that a process printed, for a signal or in a crash, without Ropewalk's outer frames."""
    return described([("", stack) for stack in parse(text)], whole=True)


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


def described(threads: Iterable[tuple[str, Stack]], *, whole: bool = False) -> str:
    """Show the threads that run user code, each under its heading.

    Args:
        threads: headings and stacks.
        whole: whether to show all of Ropewalk's frames below user code, as in a crash, which may be in the last one.
    """
    shown = [(heading, _from_user_code(stack, whole)) for heading, stack in threads]
    return "\n".join(heading + "".join(traceback.format_list(stack)) for heading, stack in shown if stack) or _IDLE


def _from_user_code(stack: Stack, whole: bool) -> Stack:
    users = [index for index, frame in enumerate(stack) if not frame.filename.startswith((OUR_FOLDER, *_BEGINNINGS))]
    return stack[users[0] : None if whole else users[-1] + 1 + _NUM_INNER] if users else []


def _read_from(path: Path, offset: int) -> str:
    try:
        with open(open_output(path), "rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")
    except FileNotFoundError:  # the process has printed nothing yet
        return ""
