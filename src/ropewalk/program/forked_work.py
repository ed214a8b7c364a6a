"""Work that a forked child does on the memory as it is now, while this process goes on and changes it.

    parent ── fork ──▶ goes on            the kernel copies a page when one of the two writes to it
                └──▶ child: work() ──result, or the error──▶ pipe ──▶ parent: wait()

A fork takes about a millisecond, plus as much again for each few tens of thousands of pages in use; copying 200 MB
takes 100 ms. Only the forking thread exists in the child, so the work must not wait for other threads: it takes no
locks that they may hold. If it does, and so never ends, it is killed.
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
from ropewalk.transport.kernel import open_process

_NICE = 10
"""Niceness of the child, which gives way to processes that serve waiting callers."""
_MOST_BYTES = 64 * 1024


class ForkedWorkFailed(RopewalkError):
    """The work of a forked child failed; the message has its exception, or the way in which it ended."""


class ForkedWork:
    """A child of this process that does one piece of work.

    Args:
        work: runs in the child, so that its changes stay there; it calls its argument from time to time, as a sign of
            life, which raises BrokenPipeError if the parent is gone, and returns a few bytes.

    Raises:
        OSError: no more processes can be created.
    """

    def __init__(self, work: Callable[[Callable[[], None]], bytes]) -> None:
        self._report, report = os.pipe()
        try:
            with warnings.catch_warnings():  # from 3.12 on, about forks beside threads; see above
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
            if not self.pid:
                os.close(self._report)  # so that signs of life fail once the parent is gone
                _be_child(work, report)
        except OSError:
            os.close(self._report)
            raise
        finally:
            os.close(report)

    @property
    def has_ended(self) -> bool:
        """Whether the child has ended, so that `wait` returns at once; not to be asked after it."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self, silent_s: float) -> bytes:
        """Wait until the work is done, and return its result; called once.

        Args:
            silent_s: timeout in seconds for a sign of life, after which the child is killed.

        Raises:
            ForkedWorkFailed: it raised, or ended otherwise.
        """
        said = bytearray()
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        # A process that another thread has forked meanwhile may have the other end of the pipe, too, for as long as it
        # lives. So the end of the pipe is not waited for, but that of the child.
        end = None
        with contextlib.suppress(ProcessLookupError):  # user code has waited for it
            end = open_process(self.pid)
        if end is not None:
            poll.register(end, select.POLLIN)
        try:
            while ready := poll.poll(1000 * silent_s):
                if all(fd == end for fd, _ in ready):
                    break
                data = os.read(self._report, _MOST_BYTES)
                if not data:
                    break
                said += data.lstrip(b".") if not said else data
            else:
                raise ForkedWorkFailed(f"the child that was to do it did not go on for {silent_s:g} s, and was killed")
        finally:
            if end is not None:
                os.close(end)
            status = self.kill()
        if said.startswith(b"+"):
            return bytes(said[1:])
        if said.startswith(b"-"):
            raise ForkedWorkFailed(said[1:].decode(errors="replace"))
        raise ForkedWorkFailed(f"the child that was to do it ended with status {status} before it was done")

    def kill(self) -> int | None:
        """Kill the child, if it has not ended; return its wait status if it is still available. May be called twice."""
        if self._report < 0:
            return None
        os.close(self._report)
        self._report = -1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # user code waits for any child
            return os.waitpid(self.pid, 0)[1]
        return None


def _be_child(work: Callable[[Callable[[], None]], bytes], report: int) -> NoReturn:
    """In the child: run the work, report the result, and end without changing anything shared with the parent."""
    try:
        faulthandler.disable()
        gc.disable()  # no cleanup is needed here, and each object that the collector visits copies a page
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
