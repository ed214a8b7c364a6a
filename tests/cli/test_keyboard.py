"""Keys of a terminal, which is restored whatever happens."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import termios
from collections.abc import Iterator
from itertools import accumulate

import pytest

from ropewalk.cli.keyboard import Keyboard, keys_in


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The side of the user, and that of the program."""
    user, program = pty.openpty()
    yield user, program
    for descriptor in (user, program):
        with contextlib.suppress(OSError):  # the test has closed it
            os.close(descriptor)


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"qk", ["q", "k"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F\r\x7f", ["page up", "page down", "home", "end", "enter", "left"]),
        (b"\x1b[200~q\x1b[1;5C", ["q"]),  # a paste begins, and Ctrl-right: not used here
        ("é".encode(), []),
        (b"\x1bq", ["q"]),  # Alt-q
    ],
)
def test_bytes_are_keys(data: bytes, keys: list[str]) -> None:
    assert keys_in(data) == (keys, b"")


def test_a_sequence_may_come_in_pieces() -> None:
    whole = b"\x1b[5~"
    for start in accumulate([1] * (len(whole) - 1)):
        keys, rest = keys_in(whole[:start])
        assert keys == []
        assert keys_in(rest + whole[start:]) == (["page up"], b"")


def test_a_sequence_without_an_end_is_dropped() -> None:
    keys, rest = keys_in(b"\x1b[" + b"1" * 40 + b"q")
    assert rest == b""
    assert keys[-1] == "q"


def test_keys_are_read_without_echo_and_the_terminal_is_restored(terminal: tuple[int, int]) -> None:
    user, program = terminal
    before = termios.tcgetattr(program)
    with Keyboard(program) as keyboard:
        os.write(user, b"s\x1b[B")
        assert keyboard.read(10.0) == ["s", "down"]
        os.write(user, b"\x1b")
        assert keyboard.read(10.0) == ["escape"]
        assert keyboard.read(0.0) == []
        assert not termios.tcgetattr(program)[3] & (termios.ECHO | termios.ICANON)
    assert termios.tcgetattr(program) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_after_a_signal(terminal: tuple[int, int], number: int) -> None:
    _, program = terminal
    before, handler = termios.tcgetattr(program), signal.getsignal(number)

    def read() -> None:
        with Keyboard(program) as keyboard:
            os.kill(os.getpid(), number)
            keyboard.read(10.0)

    with pytest.raises(SystemExit) as ended:
        read()
    assert ended.value.code == 128 + number
    assert termios.tcgetattr(program) == before
    assert signal.getsignal(number) == handler


def test_another_size_of_the_window_is_told(terminal: tuple[int, int]) -> None:
    _, program = terminal
    with Keyboard(program) as keyboard:
        os.kill(os.getpid(), signal.SIGWINCH)
        assert keyboard.read(10.0) == ["resize"]
        assert keyboard.read(0.0) == []


def test_a_terminal_that_is_gone_ends_the_reading(terminal: tuple[int, int]) -> None:
    user, program = terminal
    with Keyboard(program) as keyboard:
        os.close(user)
        with pytest.raises(EOFError):
            keyboard.read(10.0)
