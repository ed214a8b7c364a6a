"""Classes of failures: two failures of one class would happen again, for all that a restart can change.

A class is the type of the exception, the innermost frame of the user's own code, and the message without what differs
from one time to the next: numbers, addresses, paths of temporary files. A trial that fails twice in the same class
before its first step is not tried again.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from types import TracebackType

_LIBRARIES = tuple(filter(None, (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))))
_OURS = str(Path(__file__).parents[1])
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "ADDRESS"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"(?<![\w./])/(?:tmp|var/tmp|dev/shm|run)/[^\s'\":,)]+"), "/tmp/..."),
    (re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"), "N"),
)
_MOST = 300


def class_of(kind: str, place: str, message: str) -> str:
    """Return the class of a failure.

    Args:
        kind: name of the exception, or what is known of the death of a process, such as "killed by SIGKILL".
        place: file and function of the innermost frame of the user's own code; empty if it is not known.
        message: its message.

    Example:
        >>> class_of("ValueError", "train.py:load", "batch 17 of /tmp/xyz is bad at 0x7f00")
        'ValueError in train.py:load: batch N of /tmp/... is bad at ADDRESS'
    """
    for pattern, short in _VARYING:
        message = pattern.sub(short, message)
    where = f" in {place}" if place else ""
    words = " ".join(message.split())[:_MOST]
    return f"{kind}{where}: {words}" if words else f"{kind}{where}"


def class_of_exception(error: BaseException) -> str:
    """Return the class of a failure with an exception of this process."""
    return class_of(type(error).__qualname__, innermost_own_place(error.__traceback__), str(error))


def innermost_own_place(traceback: TracebackType | None) -> str:
    """Return "file:function" of the innermost frame of the user's code; lines would move with edits."""
    folders = tuple(f"{folder}/" for folder in (*_LIBRARIES, _OURS))
    place = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(folders) and not code.co_filename.startswith("<frozen"):
            place = f"{Path(code.co_filename).name}:{code.co_qualname}"
        traceback = traceback.tb_next
    return place


__all__ = ["class_of", "class_of_exception", "innermost_own_place"]
