"""The output of processes: whole lines, kept in files and shown with a prefix.

The last ones are kept for a death record.

    process ──pipe──▶ agent: LineAssembler ──Output──▶ session: Console ──▶ [pool-1.3@host] text

Lines are never mixed: the agent forwards only whole lines (or, of an endless line,
pieces of 64 KiB), and one thread in the launcher prints. When the terminal does not
keep up, the agent stops reading the pipe and the process waits in `write`.

A progress bar writes over its line and does not end it: every ten seconds its present state counts as a line.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import queue
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from ropewalk.escaping import escaped, escaped_line, last_state
from ropewalk.processes.bounded_output import give_beginning_back
from ropewalk.trusted_files import make_folder, open_to_append
from ropewalk.user_frames import stacks_text

logger = logging.getLogger(__name__)

_LONGEST_LINE = 64 * 1024
"""The most bytes of one line that are held back while its end has not come."""
_BAR_S = 10.0
"""Seconds between two states of a progress bar that are shown."""
_PARTIAL_S = 0.2
"""Seconds for which a line of the program that has no end yet waits for it, where Python does not buffer. Each look
takes 0.1 ms of CPU time, for as long as the launcher runs."""
_TAIL_LINES = 60
_TAIL_BYTES = 8 * 1024
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


def output_file_name(process: str) -> str:
    """Return the name of the file with the output of a process, whose own name may look like a path."""
    return f"{process.replace('/', '_')}.log"


class LineAssembler:
    """Turns the bytes of a pipe into whole lines, keeps the last ones, and writes all to a file.

    Args:
        path: of the file; None for none.
        is_bounded: whether the file keeps only its end; see `bounded_output`.
    """

    def __init__(self, path: Path | None, *, is_bounded: bool = False) -> None:
        self.problem = ""
        self._is_bounded = is_bounded
        self._partial = bytearray()
        self._bar_due: float | None = None
        """Monotonic time at which the state of a progress bar is to be shown; None: there is no bar."""
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._file: io.FileIO | None = None
        if path is not None:
            with self._noting_problems():
                make_folder(path.parent)
                self._file = io.FileIO(open_to_append(path), "w")

    def feed(self, data: bytes) -> str:
        """Take bytes; returns the lines that are complete now."""
        self._partial += data
        end = self._partial.rfind(b"\n") + 1
        is_long = len(self._partial) >= _LONGEST_LINE
        if end:
            self._bar_due = None
        elif bar := self._bar_end(is_long):
            return self._take(bar, end_line=True) + "\n"
        elif is_long:
            end = len(self._partial)
        return self._take(end)

    def _bar_end(self, is_due: bool) -> int:
        """Return the end of the last whole state of a progress bar, if it is to be shown now; else 0."""
        end = self._partial.rfind(b"\r")
        if end <= 0:
            return 0
        now = time.monotonic()
        if self._bar_due is None:
            self._bar_due = now + _BAR_S
        if not is_due and now < self._bar_due:
            return 0
        self._bar_due = now + _BAR_S
        return end

    def finish(self) -> str:
        """End the output of a process that is gone: the last line counts although it has no end. Closes the file."""
        rest = self._take(len(self._partial), end_line=True)
        if self._file:
            self._file.close()
            self._file = None
        return rest

    def tail(self) -> str:
        """Return the last lines, with the one that has no end yet."""
        lines = [*self._tail, last_state(bytes(self._partial))] if self._partial else list(self._tail)
        return b"\n".join(lines)[-_TAIL_BYTES:].decode(errors="replace")

    def _take(self, end: int, *, end_line: bool = False) -> str:
        whole = bytes(self._partial[:end])
        del self._partial[:end]
        if self._file and whole:
            with self._noting_problems():
                # Whole lines: the other pipe of the process writes to the same file.
                self._file.write(whole + b"\n" if end_line else whole)
                if self._is_bounded:
                    give_beginning_back(self._file.fileno())
        lines = whole.removesuffix(b"\n").split(b"\n") if whole else []
        self._tail.extend(last_state(line)[-_TAIL_BYTES:] for line in lines)
        return whole.decode(errors="replace")

    @contextlib.contextmanager
    def _noting_problems(self):  # type: ignore[no-untyped-def]
        try:
            yield
        except OSError as error:  # a full disk must not end the run; the session reports it once
            self.problem = f"is no longer kept in a file: {error}"
            if self._file:
                with contextlib.suppress(OSError):
                    self._file.close()
                self._file = None


class UnbufferedStreams:
    """Has the streams that Python does not buffer (PYTHONUNBUFFERED) write whole lines at once.

    Without a buffer, `print("step", 3)` writes "step", " ", "3" and the end of the line one after the other, and the
    lines of processes come between them.
    """

    def __init__(self) -> None:
        self._found: list[tuple[io.TextIOWrapper[Any], bool]] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def open(self) -> None:
        """Find them."""
        for stream in (sys.stdout, sys.stderr):
            found = cast("io.TextIOWrapper[Any]", stream)
            if isinstance(stream, io.TextIOWrapper) and found.write_through:  # programs put others in their place
                self._found.append((found, found.line_buffering))
                found.reconfigure(line_buffering=True, write_through=False)

    def flush(self) -> None:
        """Write lines that have no end yet, which are not to wait for it."""
        for stream, _ in self._found:
            with contextlib.suppress(Exception):  # it may be closed
                stream.flush()

    def close(self) -> None:
        """Leave them as they were."""
        for stream, line_buffering in self._found:
            with contextlib.suppress(Exception):
                stream.reconfigure(line_buffering=line_buffering, write_through=True)
        self._found.clear()


class Console:
    """Prints the output of processes from one thread, each line with the name of its process."""

    def __init__(self) -> None:
        self._unbuffered = UnbufferedStreams()
        self.problem = ""
        """Why the output of other hosts is no longer kept in files; empty while it is."""
        self._lines: queue.SimpleQueue[tuple[str, str, bool, Callable[[], object]] | None] = queue.SimpleQueue()
        self.num_shown = 0
        """Counts the pieces of output that were printed."""
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Prepare to print: at the end of the interpreter, no thread can be started any more."""
        if self._thread is None:
            self._unbuffered.open()
            self._thread = threading.Thread(target=self._print_all, name="ropewalk-console", daemon=True)
            self._thread.start()

    def show(self, who: str, text: str, is_error: bool, on_shown: Callable[[], object]) -> None:
        """Print lines of a process soon; from the loop's thread.

        Args:
            who: prefix of each line; empty to print the lines as they are.
            text: whole lines.
            is_error: whether they go to stderr.
            on_shown: called when they have been printed.
        """
        self.open()
        self._lines.put((who, text, is_error, on_shown))

    def when_shown(self, call: Callable[[], object]) -> None:
        """Have a call made when everything that was passed before has been printed; at once, if nothing ever was."""
        if self._thread is None:
            call()
        else:
            self.show("", "", False, call)

    def close(self, timeout_s: float = 2.0) -> None:
        """Print what is left and end; may be called twice."""
        if self._thread:
            self._lines.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join(timeout_s)
            self._thread = None
            self._unbuffered.close()

    def _print_all(self) -> None:
        while True:
            try:
                entry = self._lines.get(timeout=_PARTIAL_S if self._unbuffered else None)
            except queue.Empty:
                self._unbuffered.flush()
                continue
            if entry is None:
                return
            who, text, is_error, on_shown = entry
            if text := stacks_text(text):
                target = sys.stderr if is_error else sys.stdout
                with contextlib.suppress(Exception):  # a closed or foreign stdout must not stop the run
                    for piece in in_pieces(prefixed(who, text, colour=_is_terminal(target)) if who else text):
                        _write(target, piece)
                        self.num_shown += 1
                    target.flush()
            on_shown()
            del entry, on_shown  # they refer to a process, and with it a pipe, until the next one prints

    def keep(self, text: str, path: Path, *, is_bounded: bool = False) -> None:
        """Append output of another host to a file here, at once.

        The report of a process's end finds its last output there.

        Args:
            text: whole lines.
            path: of the file.
            is_bounded: whether the file keeps only its end; see `bounded_output`.
        """
        if self.problem:
            return
        try:
            make_folder(path.parent)
            with open(open_to_append(path), "ab", buffering=0) as file:
                file.write(text.encode(errors="replace"))
                if is_bounded:
                    give_beginning_back(file.fileno())
        except OSError as error:  # a full disk must not end the run
            self.problem = str(error)
            logger.warning("the output of processes is no longer kept in %s: %s", path.parent, error)


def prefixed(who: str, text: str, *, colour: bool) -> str:
    """Prefix every line of `text` with `[who]`; characters that control the terminal, or begin a line, are escaped.

    Colours are kept, and end with their line.
    """
    prefix = f"[{escaped(who)}]"
    if colour:
        prefix = f"\x1b[{_COLOURS[sum(who.encode()) % len(_COLOURS)]}m{prefix}\x1b[0m"
    lines = text.removesuffix("\n").split("\n")
    return "".join(f"{prefix} {escaped_line(line, colours=True)}\n" for line in lines)


def in_pieces(text: str) -> Iterator[str]:
    """Split text into as many whole lines at a time as a pipe takes at once; a longer line comes by itself.

    The program's own output from another thread comes between them, also if Python does not buffer its streams:
    then larger pieces are torn.
    """
    most = select.PIPE_BUF if text.isascii() else select.PIPE_BUF // 4
    at = 0
    while at < len(text):
        end = text.rfind("\n", at, at + most) + 1 or text.find("\n", at) + 1 or len(text)
        yield text[at:end]
        at = end


def _write(target: TextIO, text: str) -> None:
    try:
        target.write(text)
    except UnicodeEncodeError as error:  # a terminal or file that cannot encode all characters gets those that it can
        target.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))


def _is_terminal(stream: object) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    with contextlib.suppress(Exception):
        return bool(stream.isatty())  # type: ignore[attr-defined]
    return False
