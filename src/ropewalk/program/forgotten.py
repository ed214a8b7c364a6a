"""Programs that their author has forgotten to launch, or to wait for: they say so, instead of doing nothing in silence.

A program that was built and is dropped, or is there when the script ends, was probably to be launched. One that still
runs when the script ends is stopped with it, and its work is lost. Both are warnings, so that filters apply.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from pathlib import Path
from typing import ClassVar

from ropewalk.quantities import counted
from ropewalk.transport.one_traceback import one_traceback

_OUR_FOLDER = str(Path(__file__).parents[1])


class SourceLine:
    """The line of the user's that the running code was called from."""

    def __init__(self) -> None:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # documented, and a warning needs no more of it
        while frame.f_back and frame.f_code.co_filename.startswith(_OUR_FOLDER):
            frame = frame.f_back
        self._file, self._line = frame.f_code.co_filename, frame.f_lineno
        self._pid = os.getpid()

    def warn(self, text: str) -> None:
        """Warn as of that line; not in a forked child, and not where a script has failed, which is reason enough."""
        if self._pid == os.getpid() and not hasattr(sys, "last_value"):
            warnings.warn_explicit(text, RuntimeWarning, self._file, self._line)


class Unlaunched:
    """Watches a program until it is launched, or looked at in another way that may be all that it was built for.

    Args:
        program: watched; not kept alive.
        name: of the program.
    """

    def __init__(self, program: object, name: str) -> None:
        self._place = SourceLine()
        self._name = name
        self.num_nodes = 0
        self._watch = weakref.finalize(program, self._dropped)

    def is_used(self) -> None:
        """It was launched, or drawn, or checked."""
        self._watch.detach()

    def _dropped(self) -> None:
        if self.num_nodes:
            nodes = counted(self.num_nodes, "node")
            self._place.warn(
                f"program {self._name!r} with {nodes} was never launched, so nothing of it ran; "
                "program.launch().wait() runs it to its end"
            )


def left_running(name: str, launched: SourceLine, unfinished: list[str]) -> None:
    """The script has ended while a program ran, which was stopped therefore.

    Args:
        name: of the program.
        launched: where.
        unfinished: the nodes that had an end of their own, and had not come to it.
    """
    what = f"{', '.join(unfinished)} had not completed" if unfinished else "its services were stopped"
    launched.warn(
        f"program {name!r} still ran when the script ended, and nobody waited for it: {what}. launch() returns at "
        "once; keep what it returns and wait, as in `with program.launch() as running: running.wait()`"
    )


class UntoldFailure:
    """How a program failed, until it is raised to somebody.

    Args:
        launched: where it was launched.
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
        """Somebody asks, and hears of it."""
        self._was_told = True
        self._untold.pop(id(self), None)

    @classmethod
    def tell_all(cls) -> None:
        """The script has ended."""
        for failure in list(cls._untold.values()):
            failure.told()
            failure._launched.warn(f"{failure._text}Nobody asked for that; running.wait() would have raised it")
