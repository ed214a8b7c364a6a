"""Warnings for programs that were built but never launched, or never waited for.

A program that is dropped unlaunched, or still exists when the script ends, was probably meant to be launched. A program
that still runs when the script ends is stopped, and its work is lost. Both are warnings, so that filters apply.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from pathlib import Path
from typing import ClassVar

from ropewalk.errors import ProgramStopped, ServiceLost
from ropewalk.quantities import counted
from ropewalk.transport.one_traceback import one_traceback

_OUR_FOLDER = str(Path(__file__).parents[1])


class SourceLine:
    """The line of user code that called the running code."""

    def __init__(self) -> None:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented, and a warning needs no more of it
        while frame.f_back and frame.f_code.co_filename.startswith(_OUR_FOLDER):
            frame = frame.f_back
        self._file, self._line = frame.f_code.co_filename, frame.f_lineno
        self._pid = os.getpid()

    def warn(self, text: str, *, is_reason: bool = False) -> None:
        """Warn with that line as the source; not in a forked child, and not in a script that has failed anyway.

        Args:
            text: the warning.
            is_reason: whether it says why the script has failed.
        """
        if self._pid == os.getpid() and (is_reason or not hasattr(sys, "last_value")):
            warnings.warn_explicit(text, RuntimeWarning, self._file, self._line)


class Unlaunched:
    """Watches a program until it is launched, or used in another way that may be its purpose.

    Args:
        program: watched, but not kept alive.
        name: the program's name.
    """

    def __init__(self, program: object, name: str) -> None:
        self._place = SourceLine()
        self._name = name
        self.num_nodes = 0
        self._watch = weakref.finalize(program, self._dropped)

    def is_used(self) -> None:
        """The program was launched, drawn or checked."""
        self._watch.detach()

    def _dropped(self) -> None:
        if self.num_nodes:
            nodes = counted(self.num_nodes, "node")
            self._place.warn(
                f"program {self._name!r} with {nodes} was never launched, so nothing of it ran; "
                "program.launch().wait() runs it to its end"
            )


def left_running(name: str, launched: SourceLine, unfinished: list[str]) -> None:
    """Warn that the script has ended while a program ran, which was therefore stopped.

    Args:
        name: the program's name.
        launched: the line that launched it.
        unfinished: the nodes that have an end of their own and had not reached it.
    """
    what = f"{', '.join(unfinished)} had not completed" if unfinished else "its services were stopped"
    launched.warn(
        f"program {name!r} still ran when the script ended, and nobody waited for it: {what}. launch() returns at "
        "once; keep what it returns and wait, as in `with program.launch() as running: running.wait()`"
    )


class UntoldFailure:
    """The failure of a program, until it is raised to a caller.

    Args:
        launched: the line that launched the program.
    """

    _untold: ClassVar[dict[int, UntoldFailure]] = {}

    def __init__(self, launched: SourceLine) -> None:
        self._launched = launched
        self._text = ""
        self._was_told = False

    def failed(self, error: Exception) -> None:
        """The program has failed."""
        self._text = f"{one_traceback(error.__cause__) if error.__cause__ else ''}{error} "
        if not self._was_told:
            self._untold[id(self)] = self

    def told(self) -> None:
        """A caller asks, and gets the failure."""
        self._was_told = True
        self._untold.pop(id(self), None)

    @classmethod
    def tell_all(cls) -> None:
        """The script has ended: print failures that were never raised."""
        follows = isinstance(getattr(sys, "last_value", None), ProgramStopped | ServiceLost)  # from such a failure
        for failure in list(cls._untold.values()):
            failure.told()
            words = f"{failure._text}Nobody asked for that; running.wait() would have raised it"
            failure._launched.warn(words, is_reason=follows)
