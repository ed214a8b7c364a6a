"""Work that a forked child does on the memory as it is now, while this process goes on and changes it.

    parent ── fork ──▶ goes on            the kernel copies a page when one of the two writes to it
                └──▶ child: work() ──result, or what went wrong──▶ pipe ──▶ parent: wait()

A fork takes about a millisecond, and as long again for each few tens of thousands of pages that are in use; copying
200 MB takes a hundred. Of the threads only the one that forks is in the child, so the work must wait for none of
the others: it takes no locks that they may hold. If it does, and so comes to no end, it is killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import select
import signal
import warnings
from collections.abc import Callable
from typing import NoReturn

from ropewalk.errors import RopewalkError

#: The child gives way to those that somebody waits for.
_NICE = 10
_MOST_BYTES = 64 * 1024


class ForkedWorkFailed(RopewalkError):
    """What a forked child was to do went wrong; says what it raised, or how it ended."""


class ForkedWork:
    """A child of this process that does one thing.

    Args:
        work: done in the child, to which all belongs that it changes; it calls its argument now and then, as a sign of
            life, and returns a few bytes.

    Raises:
        OSError: there can be no more processes.
    """

    def __init__(self, work: Callable[[Callable[[], None]], bytes]) -> None:
        self._report, report = os.pipe()
        try:
            with warnings.catch_warnings():  # from 3.12 on, of forks beside threads; see above
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
            if not self.pid:
                _be_child(work, report)
        except OSError:
            os.close(self._report)
            raise
        finally:
            os.close(report)

    def wait(self, silent_s: float) -> bytes:
        """Wait until it is done, and return its result; once.

        Args:
            silent_s: kill it if it shows no sign of life for so long.

        Raises:
            ForkedWorkFailed: it raised, or ended otherwise.
        """
        said = bytearray()
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        try:
            while poll.poll(1000 * silent_s):
                data = os.read(self._report, _MOST_BYTES)
                if not data:
                    break
                said += data.lstrip(b".") if not said else data
            else:
                raise ForkedWorkFailed(f"the child that was to do it did not go on for {silent_s:g} s, and was killed")
        finally:
            status = self.kill()
        if said.startswith(b"+"):
            return bytes(said[1:])
        if said.startswith(b"-"):
            raise ForkedWorkFailed(said[1:].decode(errors="replace"))
        raise ForkedWorkFailed(f"the child that was to do it ended with status {status} before it was done")

    def kill(self) -> int | None:
        """End it, if it has not ended; returns its wait status, if that can still be had. May be called twice."""
        if self._report < 0:
            return None
        os.close(self._report)
        self._report = -1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # the user's code waits for any child
            return os.waitpid(self.pid, 0)[1]
        return None


def _be_child(work: Callable[[Callable[[], None]], bytes], report: int) -> NoReturn:
    """In the child: do it, say so, and end without a trace in what it shares with its parent."""
    try:
        faulthandler.disable()
        gc.disable()  # nothing is to be tidied up here, and each object that is looked at is a page to be copied
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.nice(_NICE)
        result = b"+" + work(lambda: _say(report, b"."))
    except BaseException as error:
        result = b"-" + f"{type(error).__name__}: {error}".encode(errors="replace")[: _MOST_BYTES - 1]
    try:
        _say(report, result)
    finally:
        os._exit(0)


def _say(report: int, words: bytes) -> None:
    while words:
        words = words[os.write(report, words) :]


__all__ = ["ForkedWork", "ForkedWorkFailed"]
