"""The frames of a traceback that a user is shown: those of their code, and of the libraries that they call.

    main.py, in main                 the user's
    trainer.py, in step          ┐
    controller.py, in _guarded   ├─  inside ropewalk and torch: left out, or one line in a text
    module.py, in _call_impl     ┘
    main.py, in loss                 the user's

The innermost frame is kept where the message of the exception does not say all, and every frame if there are only
frames of Ropewalk: then the mistake is ours. A ValueError, or the like, that Ropewalk raises on purpose says all.
With ROPEWALK_FULL_TRACEBACK=1 in the environment, nothing is left out.
"""

from __future__ import annotations

import functools
import itertools
import opcode
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar, cast

from ropewalk.errors import RopewalkError
from ropewalk.quantities import counted

P = ParamSpec("P")
R = TypeVar("R")

VARIABLE = "ROPEWALK_FULL_TRACEBACK"
"""The environment variable that shows every frame."""

_INNER = ("ropewalk", "torch")
"""Packages whose frames stand between those of the user."""
_BETWEEN = ("concurrent", "contextlib", "functools", "threading", "")
"""Packages whose frames are left out beside such frames; "": code that was generated."""
_HERE = Path(__file__).parent
_STACK_LINE = re.compile(r' *File "(.+)", line \d+ in (.+)')
_STARTS_OF_THREADS = ("run", "_bootstrap_inner", "_bootstrap")
_WRAPPERS = (__name__, "ropewalk.misplaced_options")
"""Modules whose functions call those that they wrap with the arguments of the user."""
_REFUSALS = (ValueError, TypeError, RuntimeError, FileNotFoundError)
_RAISE = opcode.opmap["RAISE_VARARGS"]
_OF_TORCH = "<eval_with_key>"
"""How the file names of code that torch.fx has generated begin."""


def user_frames_only(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function or method raise its exceptions without the frames that are inside Ropewalk and torch."""

    @functools.wraps(function)
    def public(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            shortened(error)
            raise  # alone, it adds no frame of this function

    return public


def shortened(error: BaseException) -> BaseException:
    """Leave inner frames out of the traceback of an exception, and of those that led to it; return the exception.

    Args:
        error: an exception that was caught, and is about to be raised to the user, by a `raise` alone.
    """
    if not shows_all():
        _shorten(error, set())
    return error


def frames_text(frames: Sequence[TracebackType], *, told: bool) -> str:
    """Return frames as text, with one line for each run of frames that are inside Ropewalk and torch.

    A run before the first frame of the user is left out, and so is one that only raised what tells all.

    Args:
        frames: of one traceback, the outermost first.
        told: as `tells_all` says of the exception.
    """
    shown = [True] * len(frames) if shows_all() else _are_shown(frames, told=told)
    lines: list[str] = []
    for is_shown, run in itertools.groupby(zip(shown, frames, strict=True), key=lambda pair: pair[0]):
        found = [frame for _, frame in run]
        if is_shown:
            lines += (text for frame in found for text in traceback.format_tb(frame, limit=1))
        elif lines and not (told and found[-1] is frames[-1]):
            lines.append(f"  ... {counted(len(found), 'frame')} inside {_packages(found)}\n")
    return "".join(lines)


def stacks_text(stacks: str) -> str:
    """Return what a process has printed, without Ropewalk's frames in the stacks of `faulthandler`.

    The innermost frame of the current thread is kept: a crash may be in ours. The beginnings of threads are left out
    as well, and so are other threads of which nothing is left, and the list of extension modules. A frame that repeats
    itself, as in an endless recursion, is shown three times, as in a traceback.

    Args:
        stacks: whole lines, each frame in one of its own, the innermost first; other lines are kept as they are.
    """
    if shows_all() or ("(most recent call first)" not in stacks and '  File "' not in stacks):
        return stacks
    lines: list[str] = []
    before = ""
    for line in stacks.splitlines(keepends=True):
        if not _is_inner_line(line) or before.startswith("Current thread 0x"):
            if not line.strip() and lines and lines[-1].startswith("Thread 0x"):
                lines.pop()  # the heading of a thread of which no frame is shown, with the blank line below it
            else:
                lines.append(line)
        before = line
    return "".join(_told_once(lines))


def _told_once(lines: Sequence[str]) -> Iterator[str]:
    for line, run in itertools.groupby(lines):
        count = len(list(run))
        most = 3 if line.startswith('  File "') else count
        yield from itertools.repeat(line, min(count, most))
        if count > most:
            yield f"  [Previous line repeated {count - most} more time{'s' * (count - most > 1)}]\n"


def tells_all(error: BaseException) -> bool:
    """Return whether the message of an exception says everything, as that of ours does, or of one from elsewhere."""
    return (
        isinstance(error, RopewalkError | KeyboardInterrupt) or _is_refusal(error) or bool(remote_text(error.__cause__))
    )


def remote_text(cause: BaseException | None) -> str:
    """Return the text of a remote traceback, if the cause of an exception is one."""
    pool = sys.modules.get("multiprocessing.pool")  # a slow import; without it there is none
    kind = getattr(pool, "RemoteTraceback", None)  # another thread may be in the middle of that import
    if kind is None or not isinstance(cause, kind):
        return ""
    return str(cause)


def shows_all() -> bool:
    """Return whether every frame is to be shown."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def _shorten(error: BaseException, seen: set[int]) -> None:
    seen.add(id(error))
    frames: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    below: TracebackType | None = None
    for frame, is_shown in reversed(list(zip(frames, _are_shown(frames, told=tells_all(error)), strict=True))):
        if is_shown:
            frame.tb_next, below = below, frame
    error.with_traceback(below)  # an exception may forbid that attributes are set
    before = error.__cause__ if error.__suppress_context__ else error.__context__
    parts = cast("BaseExceptionGroup[BaseException]", error).exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (before, *parts):
        if other is not None and id(other) not in seen:
            _shorten(other, seen)


def _are_shown(frames: Sequence[TracebackType], *, told: bool) -> list[bool]:
    """Return for each frame whether it is shown."""
    packages = [_package(frame) for frame in frames]
    shown: list[bool] = []
    for inner, run in itertools.groupby(packages, key=lambda package: package in (*_INNER, *_BETWEEN)):
        names = list(run)
        shown += [not inner or set(names) <= set(_BETWEEN)] * len(names)
    if not told and not any(shown) and "torch" not in packages:
        return [True] * len(frames)
    if not told and shown:
        shown[-1] = True
    return shown


def _is_refusal(error: BaseException) -> bool:
    """Return whether Ropewalk has raised this on purpose, for something that the user gave or asked for."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or _package(last) != "ropewalk":
        return False
    if isinstance(error, TypeError) and last.tb_frame.f_globals.get("__name__") in _WRAPPERS:  # not in the signature
        return True
    if not isinstance(error, _REFUSALS) or isinstance(error, NotImplementedError):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE


def _package(frame: TracebackType) -> str:
    """Return the name of the package that the code of a frame belongs to; "" for code without a module."""
    if frame.tb_frame.f_code.co_filename.startswith(_OF_TORCH):
        return "torch"
    name = str(frame.tb_frame.f_globals.get("__name__", "builtins"))
    return name.partition(".")[0].removeprefix("builtins")


def _is_inner_line(line: str) -> bool:
    """Return whether a line of `faulthandler` is a frame of Ropewalk, wherever that host has it, or of its start."""
    if not (found := _STACK_LINE.match(line)):
        return line.startswith("Extension modules: ")
    file, function = found[1], found[2]
    _, is_ours, module = file.rpartition("/ropewalk/")
    starts = file == "<frozen runpy>" or (file.endswith("/threading.py") and function in _STARTS_OF_THREADS)
    return starts or bool(is_ours and (_HERE / module).is_file())


def _packages(frames: Sequence[TracebackType]) -> str:
    """Return the names of the packages that frames are inside of."""
    found = {_package(frame) for frame in frames}
    return " and ".join(name for name in _INNER if name in found)


__all__ = [
    "VARIABLE",
    "frames_text",
    "remote_text",
    "shortened",
    "shows_all",
    "stacks_text",
    "tells_all",
    "user_frames_only",
]
