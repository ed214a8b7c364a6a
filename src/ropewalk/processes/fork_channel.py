"""The agent's end of a fork server: starts it, asks it for forks, replaces it when it dies."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import msgspec

from ropewalk.errors import LinkClosed
from ropewalk.processes import fork_server
from ropewalk.processes.messages import ForkReply, ForkRequest
from ropewalk.transport.channel import Channel
from ropewalk.transport.loop import Loop

_REPLIES = msgspec.msgpack.Decoder(ForkReply)
_MAX_DEATHS = 5
"""A fork server that dies more often than this within `_WINDOW_S` is not replaced any more."""
_WINDOW_S = 10.0
_FULL_S = 0.005
"""After this time a full channel is tried again, in seconds; a fork server with a full channel is busy for longer."""
_LAST_WORDS_S = 0.5
"""How long the intermediate process between a dead fork server and a worker may take to report its fork, in seconds."""


class ForkServer(NamedTuple):
    """A fork server that was started, and our end of the channel to it."""

    pid: int
    channel: Channel


def begin_fork_server(preload: tuple[str, ...], path: tuple[str, ...]) -> ForkServer:
    """Start a fork server; only in a process with one thread.

    Raises:
        OSError: no process or no descriptor is left.
    """
    ours, theirs = Channel.pair()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _become_fork_server(theirs, preload, path)
    theirs.close()
    return ForkServer(pid, ours)


class ForkChannel:
    """One fork server (for one set of modules, preloaded from one import path) and the requests it has not answered."""

    def __init__(
        self,
        preload: tuple[str, ...],
        path: tuple[str, ...],
        loop: Loop,
        on_reply: Callable[[ForkReply], None],
        on_event: Callable[[str], None],
        begun: ForkServer | None = None,
    ) -> None:
        self.pid = 0
        self._preload, self._path = preload, path
        self._loop = loop
        self._on_reply = on_reply
        self._on_event = on_event
        self._asked: dict[str, tuple[ForkRequest, Sequence[int]]] = {}
        self._unsent: deque[str] = deque()
        self._full = False
        """Whether the channel took no more, and a timer runs after which it is tried again."""
        self._ready = False
        self._cannot_import = False
        """Whether it has reported that it cannot import `preload`, and ends."""
        self._num_never_ready = 0
        self._deaths: deque[float] = deque(maxlen=_MAX_DEATHS)
        self._begin(begun)

    def request(self, request: ForkRequest, fds: Sequence[int]) -> None:
        """Request a process; the answer comes by `on_reply`. The descriptors stay open until then."""
        self._asked[request.start.id] = (request, fds)
        self._unsent.append(request.start.id)
        if not self.pid:
            self._begin()
        self._send()

    def ended(self, pid: int, exit_code: int) -> bool:
        """Handle the end of a child of the agent; returns whether it was this fork server, which is replaced then."""
        if pid != self.pid:
            return False
        self._read_rest()
        self._close()
        self._deaths.append(time.monotonic())
        if len(self._deaths) == _MAX_DEATHS and self._deaths[-1] - self._deaths[0] < _WINDOW_S:
            reason = f"the fork server died {_MAX_DEATHS} times within {_WINDOW_S:g} s (exit code {exit_code})"
            self._on_event(f"{reason}; the next start tries another one")
            self._fail_all(reason)
            return True
        self._num_never_ready = 0 if self._ready else self._num_never_ready + 1
        if not self._asked and (self._cannot_import or self._num_never_ready >= _MAX_DEATHS):
            return True  # the next request tries another one
        self._on_event(f"the fork server (pid {pid}) ended with exit code {exit_code} and was replaced")
        self._unsent = deque(self._asked)
        self._begin()
        return True

    def _begin(self, begun: ForkServer | None = None) -> None:
        try:
            self.pid, self._channel = begun or begin_fork_server(self._preload, self._path)
        except OSError as error:
            self._fail_all(f"the agent cannot start a fork server: {error}")
            return
        self._channel.wait_at_most(0)
        self._ready, self._cannot_import = False, False
        self._loop.watch(self._channel.fileno(), self._read)

    def _send(self) -> None:
        while self._ready and self._unsent and not self._full:
            request, fds = self._asked[self._unsent[0]]
            try:
                self._channel.send(msgspec.msgpack.encode(request), fds)
            except BlockingIOError:
                self._full = True  # one timer for all that wait
                self._loop.call_later(_FULL_S, self._send_again)
                return
            except LinkClosed:
                return  # it died; `ended` asks again
            self._unsent.popleft()

    def _send_again(self) -> None:
        self._full = False
        self._send()

    def _read(self) -> None:
        while self.pid:
            try:
                data, _ = self._channel.receive()
            except BlockingIOError:
                return
            if not data:
                self._loop.unwatch(self._channel.fileno())
                return
            reply = _REPLIES.decode(data)
            if reply.id:
                if self._asked.pop(reply.id, None):
                    self._on_reply(reply)
            elif reply.pid:
                self._ready = True
                self._send()
            else:
                self._cannot_import = True
                self._fail_all(reply.reason)

    def _read_rest(self) -> None:
        """Read all replies up to the end.

        A fork that was under way when the server died is reported by the intermediate process.
        """
        self._loop.unwatch(self._channel.fileno())
        self._channel.wait_at_most(_LAST_WORDS_S)
        self._read()

    def _fail_all(self, reason: str) -> None:
        asked, self._asked = list(self._asked), {}
        self._unsent.clear()
        for id in asked:
            self._on_reply(ForkReply(id, 0, reason))

    def _close(self) -> None:
        self.pid = 0
        self._loop.unwatch(self._channel.fileno())
        self._channel.close()


def _become_fork_server(channel: Channel, preload: tuple[str, ...], path: tuple[str, ...]) -> NoReturn:
    """Become a fork server, in a forked child: keep the channel, close everything else, serve, and end."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # An engine may send its notice to all processes of a job, and what runs may finish. Handlers of the agent would
        # be inherited by all processes, and each call of a process with handlers takes longer (`interrupts.may_block`).
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # what the launcher tells the agent is not for it
        os.closerange(3, channel.fileno())
        os.closerange(channel.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        fork_server.serve(channel, preload, path)
        code = 0
    finally:
        os._exit(code)
