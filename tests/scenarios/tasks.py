"""Functions that tests of this folder run in workers; imports only what costs nothing there."""

from __future__ import annotations

import os

from tests.patience import wait_until


def note(path: str, text: object) -> None:
    """Append a line; whole lines of many processes do not mix."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)


def noted(path: str) -> list[str]:
    """The lines so far."""
    try:
        with open(path) as file:
            return file.read().split()
    except FileNotFoundError:
        return []


def wait_for_file(path: str) -> None:
    """Wait for a gate that the test opens by making a file."""
    wait_until(lambda: os.path.exists(path), what=path)


def square(number: int) -> int:
    return number * number


def pid(_: object = None) -> int:
    return os.getpid()


def nothing(_: object = None) -> None:
    return None


def megabyte(_: object = None) -> bytes:
    return bytes(1 << 20)


def raise_value_error(text: object) -> None:
    raise ValueError(text)


class OwnError(Exception):
    """Of the user's, with a constructor that does not fit its args."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return _own_error, (self.code, self.reason)


def _own_error(code: int, reason: str) -> OwnError:
    return OwnError(code, reason=reason)


class LostError(Exception):
    """Can be pickled, and not unpickled: its constructor wants more than its args hold."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self.args  # one argument, and `__init__` wants two


def raise_own_error(code: int) -> None:
    raise OwnError(code, reason="because")


def raise_lost_error(code: int) -> None:
    raise LostError(code, "because")
