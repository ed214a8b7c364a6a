"""How forks are asked of a fork server that is busy; what real ones do is tested with agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from ropewalk.processes.fork_channel import ForkChannel
from ropewalk.processes.messages import ForkRequest
from ropewalk.transport.loop import Loop
from tests.processes.pretend_loop import START, PretendLoop


class BusyChannel:
    """Takes a few messages, and then no more."""

    def __init__(self) -> None:
        self.room = 3
        self.num_attempts = 0
        self.sent: list[str] = []

    def send(self, message: bytes, _fds: Sequence[int] = ()) -> None:
        self.num_attempts += 1
        if len(self.sent) == self.room:
            raise BlockingIOError
        self.sent.append(msgspec.msgpack.decode(message, type=ForkRequest).start.id)


def test_a_full_channel_is_tried_once_for_all_requests_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each request set a timer of its own, and each of these tried again: 376,000 attempts to start 1,000 workers.
    channel, loop = BusyChannel(), PretendLoop()

    def begin(self: Any, _begun: None) -> None:
        self.pid, self._channel, self._ready = 1, channel, True

    monkeypatch.setattr(ForkChannel, "_begin", begin)
    forks = ForkChannel((), (), cast("Loop", loop), lambda _reply: None, lambda _event: None)
    for number in range(100):
        start = msgspec.structs.replace(START, id=str(number))
        forks.request(ForkRequest(start, "run", "agent", 1, "host"), ())
    assert (channel.num_attempts, len(channel.sent), len(loop.later)) == (4, 3, 1)
    loop.pause()
    assert (channel.num_attempts, len(channel.sent), len(loop.later)) == (5, 3, 1), "it is still full"
    channel.room = 1000
    loop.pause()
    assert channel.sent == [str(number) for number in range(100)]
    assert (channel.num_attempts, loop.later) == (102, [])
