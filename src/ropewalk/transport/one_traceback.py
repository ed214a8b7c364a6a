"""The traceback of an exception that has crossed processes: one for all of them, in the order of the calls.

    Traceback (most recent call last):
      File "train.py", line 5, in act               the caller's frames
        store.push(1)
      in store:
      File "train.py", line 3, in push              the frames of the process that it called
        return self.total + x
    TypeError: unsupported operand type(s) for +: 'int' and 'str'

Python's own output would have a block for each process in between, with frames of ours in it.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import cast

from ropewalk.errors import RopewalkError

_HEADER = "Traceback (most recent call last):\n"
_OUR_FOLDER = str(Path(__file__).parents[1])
_NOTE = re.compile(r"It was raised in (.+); the remote traceback is above\.")
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"


def note_of_place(where: str) -> str:
    """Return the note that an exception gets in the process where it arrives."""
    return f"It was raised in {where}; the remote traceback is above."


def own_notes(error: BaseException) -> list[str]:
    """Return the notes of an exception without those that name processes it came from."""
    notes: list[object] = list(getattr(error, "__notes__", ()))
    return [str(note) for note in notes if not _NOTE.fullmatch(str(note))]


def one_traceback(error: BaseException, *ours: str) -> str:
    """Return the text of an exception, and of those that led to it.

    Args:
        error: an exception that was caught.
        *ours: modules and packages whose frames are left out where they are outermost.
    """
    return _text(error, ours, set())


def without_our_frames(error: BaseException) -> BaseException:
    """Prepare an exception from another process to be raised to the user, without our frames.

    Any other exception is left as it is.
    """
    return error.with_traceback(None) if _remote_text(error.__cause__) else error


def _text(error: BaseException, ours: tuple[str, ...], seen: set[int]) -> str:
    if isinstance(error, BaseExceptionGroup):  # its parts are printed as a tree
        return "".join(traceback.format_exception(cast("BaseException", error)))
    seen.add(id(error))
    before, remote_frames = "", ""
    cause = error.__cause__
    remote = _remote_text(cause)
    if remote:
        before, remote_frames = _split(remote)
    elif cause is not None and id(cause) not in seen:
        before = _text(cause, ours, seen) + _CAUSED
    elif cause is None and not error.__suppress_context__ and error.__context__ and id(error.__context__) not in seen:
        before = _text(error.__context__, ours, seen) + _MEANWHILE
    told = bool(remote) or isinstance(error, RopewalkError)
    frames = _frames(error.__traceback__, ours, told=told)
    if remote_frames:
        frames += f"  in {_place_of(error)}:\n{remote_frames}"
    return before + (_HEADER + frames if frames else "") + _last_words(error)


def _frames(trace: TracebackType | None, ours: tuple[str, ...], *, told: bool) -> str:
    """Return the frames of this process, without ours around those of the user.

    Args:
        trace: traceback of an exception.
        ours: as in `one_traceback`.
        told: whether the text of the exception says everything, as that of ours does, or of one that arrived from
            elsewhere: then our innermost frames, which only raised it, are left out. Else ours are kept if there are no
            others.
    """
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    first, last = 0, len(frames)
    while first < last and _is_of(frames[first], ours):
        first += 1
    while told and first < last and frames[last - 1].tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        last -= 1
    if first == last and not told:
        first, last = 0, len(frames)
    return "".join(text for frame in frames[first:last] for text in traceback.format_tb(frame, limit=1))


def _is_of(frame: TracebackType, modules: tuple[str, ...]) -> bool:
    name = str(frame.tb_frame.f_globals.get("__name__", ""))
    return any(name == each or name.startswith(f"{each}.") for each in modules)


def _remote_text(cause: BaseException | None) -> str:
    """Return the text of a remote traceback, if the cause is one."""
    pool = sys.modules.get("multiprocessing.pool")  # a slow import; without it there is none
    kind = getattr(pool, "RemoteTraceback", None)  # another thread may be in the middle of that import
    if kind is None or not isinstance(cause, kind):
        return ""
    return str(cause)


def _split(text: str) -> tuple[str, str]:
    """Split a remote traceback: the exceptions that led to its last one, and the frames of that."""
    before, header, last = f"\n{text}".rpartition(f"\n{_HEADER}")
    if not header:
        return "", ""
    frames: list[str] = []
    for line in last.splitlines(keepends=True):
        if not line.startswith("  "):
            break
        frames.append(line)
    return f"{before[1:]}\n" if before else "", "".join(frames)


def _place_of(error: BaseException) -> str:
    notes = [_NOTE.fullmatch(str(note)) for note in getattr(error, "__notes__", ())]
    return next((note[1] for note in reversed(notes) if note), "another process")


def _last_words(error: BaseException) -> str:
    """Return the line with the exception's type and message, and its notes."""
    lines = traceback.format_exception_only(error)
    return "".join(line for line in lines if not _NOTE.fullmatch(line.removesuffix("\n")))


__all__ = ["note_of_place", "one_traceback", "own_notes", "without_our_frames"]
