"""The traceback of an exception that has crossed processes: one for all of them, in the order of the calls.

    Traceback (most recent call last):
      File "train.py", line 5, in act               the caller's frames
        store.push(1)
      in store:
      File "train.py", line 3, in push              the frames of the process that it called
        return self.total + x
    TypeError: unsupported operand type(s) for +: 'int' and 'str'

Python's own output would have a block for each process in between, with frames of ours in it. Which frames are shown,
`user_frames.py` says.
"""

from __future__ import annotations

import linecache
import re
import traceback
from types import TracebackType
from typing import cast

from ropewalk.user_frames import frames_text, remote_text, shortened, shows_all, tells_all

_HEADER = "Traceback (most recent call last):\n"
_NOTE = re.compile(r"It was raised in (.+?)(?:, and came by way of (.+))?; the remote traceback is above\.")
_FRAME = re.compile(r'  File "(.+)", line ([0-9]{1,9}), in .+\n')
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"


def note_of_place(where: str, origin: str = "") -> str:
    """Return the note that an exception gets in the process where it arrives.

    Args:
        where: the process that it comes from.
        origin: the process that raised it, if it is another one.
    """
    places = f"{origin}, and came by way of {where}" if origin else where
    return f"It was raised in {places}; the remote traceback is above."


def origin_of(error: BaseException) -> str:
    """Return the process in which an exception was raised; empty if that is this one."""
    note = _note_of(error)
    return note[1] if note else ""


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


def with_known_code(text: str) -> str:
    """Return a traceback from another process with the lines of code that only this one has.

    The cells of a notebook and the input of a console are in no file. `linecache` keeps them where they were typed; no
    file is read here.
    """
    lines = text.splitlines(keepends=True)
    completed: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        completed.append(line)
        frame = _FRAME.fullmatch(line)
        if frame and not following.startswith("    ") and frame[1] in linecache.cache:
            code = linecache.getline(frame[1], int(frame[2])).strip()
            completed += [f"    {code}\n"] if code else []
    return "".join(completed)


def _text(error: BaseException, ours: tuple[str, ...], seen: set[int]) -> str:
    if isinstance(error, BaseExceptionGroup):  # its parts are printed as a tree
        return "".join(traceback.format_exception(shortened(cast("BaseException", error))))
    seen.add(id(error))
    before, remote_frames = "", ""
    cause = error.__cause__
    remote = remote_text(cause)
    if remote:
        before, remote_frames = _split(remote)
    elif cause is not None and id(cause) not in seen:
        before = _text(cause, ours, seen) + _CAUSED
    elif cause is None and not error.__suppress_context__ and error.__context__ and id(error.__context__) not in seen:
        before = _text(error.__context__, ours, seen) + _MEANWHILE
    frames = _frames(error.__traceback__, ours, told=tells_all(error))
    if remote_frames:
        frames += f"  in {_place_of(error)}:\n{remote_frames}"
    return before + (_HEADER + frames if frames else "") + _last_words(error)


def _frames(trace: TracebackType | None, ours: tuple[str, ...], *, told: bool) -> str:
    """Return the frames of this process, without the outermost ones of the modules in `ours` and without inner ones.

    If there are no others, they are kept, unless the exception tells all.
    """
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    if shows_all():
        return frames_text(frames, told=told)
    first = 0
    while first < len(frames) and _is_of(frames[first], ours):
        first += 1
    if first == len(frames) and not told:
        first = 0
    return frames_text(frames[first:], told=told)


def _is_of(frame: TracebackType, modules: tuple[str, ...]) -> bool:
    name = str(frame.tb_frame.f_globals.get("__name__", ""))
    return any(name == each or name.startswith(f"{each}.") for each in modules)


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
    note = _note_of(error)
    return note[2] or note[1] if note else "another process"


def _note_of(error: BaseException) -> re.Match[str] | None:
    notes = [_NOTE.fullmatch(str(note)) for note in getattr(error, "__notes__", ())]
    return next((note for note in reversed(notes) if note), None)


def _last_words(error: BaseException) -> str:
    """Return the line with the exception's type and message, and its notes."""
    lines = traceback.format_exception_only(error)
    return "".join(line for line in lines if not _NOTE.fullmatch(line.removesuffix("\n")))


__all__ = ["note_of_place", "one_traceback", "origin_of", "own_notes", "with_known_code"]
