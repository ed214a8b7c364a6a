"""Stand-ins for the loop and the links of an agent, so that its parts are tested one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ropewalk.processes.messages import StartProcess

START = StartProcess("", "p", "m:f", "", "", {}, 1.0, (), "/", (), None)


class PretendLoop:
    """Keeps what is watched and what is to be called later."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], object]] = {}
        self.later: list[tuple[float, Callable[[], object]]] = []

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        assert fd not in self.watched
        self.watched[fd] = call

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        self.later.append((delay_s, call))

    def pause(self) -> None:
        """Let all timers run out."""
        later, self.later = self.later, []
        for _, call in later:
            call()


class PretendLink:
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    send_if_open = send
