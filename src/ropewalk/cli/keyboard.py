"""`Keyboard`: the keys that are pressed in a terminal, one at a time and without echo; the terminal is always restored.

terminal ── bytes ──▶ keys_in ──▶ "up", "enter", "q", ...
SIGWINCH ──▶ "resize"      SIGTERM, SIGHUP ──▶ SystemExit, by which the terminal is restored
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
from types import FrameType, TracebackType
from typing import Any, Self

_SEQUENCES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[C": "right", b"\x1bOC": "right", b"\x1b[D": "left", b"\x1bOD": "left",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home", b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b"\r": "enter", b"\n": "enter", b"\x7f": "left", b"\x08": "left", b"\x03": "interrupt",
}  # fmt: skip
_LONGEST_SEQUENCE = 16
_REST_OF_SEQUENCE_S = 0.05
"""Seconds within which the rest of an escape sequence follows its first byte, also over a slow link; vim waits as long
in a terminal."""


def keys_in(data: bytes) -> tuple[list[str], bytes]:
    r"""Return the keys of what a terminal sent, and the beginning of a sequence that is not complete.

    A key without a name here is left out.

    Example:
        >>> keys_in(b"q\x1b[A\x1b[")
        (['q', 'up'], b'\x1b[')
    """
    keys: list[str] = []
    at = 0
    while at < len(data):
        length = _length(data[at:])
        if length == 0:
            return keys, data[at:]
        one = data[at : at + length]
        if one in _SEQUENCES:
            keys.append(_SEQUENCES[one])
        elif length == 1 and 0x20 < one[0] < 0x7F:
            keys.append(one.decode())
        at += length
    return keys, b""


def _length(data: bytes) -> int:
    """Return the length of the first key in bytes; 0 if it is not complete."""
    if data[0] != 0x1B:
        return 1
    if len(data) == 1:
        return 0
    if data[1] == ord("O"):  # SS3: one more byte
        return 3 if len(data) > 2 else 0
    if data[1] != ord("["):  # the key Escape, and another key after it
        return 1
    for index in range(2, min(len(data), _LONGEST_SEQUENCE)):  # CSI: up to a final byte, ECMA-48, section 5.4
        if 0x40 <= data[index] <= 0x7E:
            return index + 1
    return 0 if len(data) < _LONGEST_SEQUENCE else _LONGEST_SEQUENCE


class Keyboard:
    """Reads keys of a terminal while its block runs, in the main thread.

    Ctrl-C raises KeyboardInterrupt, and Ctrl-Z does nothing.

    Args:
        terminal: descriptor of the terminal.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._pending = b""
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._resized = self._resize = -1

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._terminal)
        self._resized, self._resize = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._has_resized)
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, _end)
            mode = termios.tcgetattr(self._terminal)
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            mode[6][termios.VSUSP] = b"\0"  # _POSIX_VDISABLE: a stopped program would leave the terminal as it is
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, mode)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Restore the terminal and the handlers of signals; may be called twice."""
        if self._before:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
            self._before = []
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        for descriptor in (self._resized, self._resize):
            if descriptor >= 0:
                os.close(descriptor)
        self._resized = self._resize = -1

    def read(self, timeout_s: float) -> list[str]:
        """Wait for keys.

        Args:
            timeout_s: seconds to wait at most.

        Returns:
            The keys that were pressed, and "resize" if the window has another size; none after `timeout_s`.

        Raises:
            EOFError: the terminal is gone.
        """
        keys: list[str] = []
        ready, _, _ = select.select([self._terminal, self._resized], [], [], timeout_s)
        if self._resized in ready:
            os.read(self._resized, 4096)
            keys.append("resize")
        if self._terminal in ready:
            self._pending += self._received()
            found, self._pending = keys_in(self._pending)
            keys += found
        if self._pending and not select.select([self._terminal], [], [], _REST_OF_SEQUENCE_S)[0]:
            keys += ["escape"] if self._pending == b"\x1b" else []
            self._pending = b""
        return keys

    def _received(self) -> bytes:
        try:
            data = os.read(self._terminal, 4096)
        except OSError as error:  # EIO: the other side of a pseudo-terminal was closed
            raise EOFError("the terminal is gone") from error
        if not data:
            raise EOFError("the terminal is gone")
        return data

    def _has_resized(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # it will be read anyway
            os.write(self._resize, b"r")


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
