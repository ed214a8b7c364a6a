"""How an agent notices that its launcher is gone.

    on the launcher's host    by a pidfd of its process, or a look each second where the kernel refuses that: a forked
                              child of the launcher may keep the link open
    on another host           by a lease, which everything renews that comes over the link

Either is in addition to the end of the control link itself.
"""

from __future__ import annotations

import time

from ropewalk.process_start import start_ticks
from ropewalk.processes.agent_words import say
from ropewalk.supervision.liveness import Lease, Liveness
from ropewalk.transport import kernel
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop

_LOOK_S = 1.0


class LauncherWatch:
    """Stops the loop of an agent when its launcher is gone. Everything is called on the loop's thread.

    Args:
        loop: loop of the agent.
        pid: the launcher's process on this host; 0 if it is on another one.
    """

    def __init__(self, loop: Loop, pid: int) -> None:
        self._loop = loop
        self._pid = pid
        self._link: Link | None = None
        self._lease: Lease | None = None
        self._num_bytes = 0

    def begin(self) -> None:
        """Watch the launcher's process, if it is on this host."""
        if not self._pid:
            return
        try:
            fd = kernel.open_process(self._pid)
            if fd is None:
                self._look_at(start_ticks(self._pid))
            else:
                self._loop.watch(fd, self._loop.stop)
        except ProcessLookupError:
            self._loop.stop()

    def begin_lease(self, link: Link, lease_s: float) -> None:
        """Watch the control link to a launcher on another host, which must say something every `lease_s` seconds."""
        self._link, self._lease = link, Lease(lease_s, time.monotonic())

    def heard(self, link: Link) -> None:
        """Renew the lease if a message came from the launcher."""
        if self._lease and link is self._link:
            self._lease.heard(time.monotonic())

    def look(self, now: float) -> None:
        """Stop the loop if the lease has run out; called each second."""
        if self._lease is None or self._link is None:
            return
        if self._link.received_bytes != self._num_bytes:
            self._num_bytes = self._link.received_bytes  # also of a large message that is not complete yet
            self._lease.heard(now)
        if self._lease.state(now) is Liveness.LOST:
            say(f"the launcher was silent for {self._lease.silent_s(now):.0f} s; this agent ends")
            self._loop.stop()

    def ends_soon(self) -> bool:
        """Wait up to two seconds for the launcher's end; returns whether it is gone.

        The descriptors of a process are closed before it is gone.
        """
        deadline = time.monotonic() + 2
        while self._pid and time.monotonic() < deadline:
            if not start_ticks(self._pid):
                return True
            time.sleep(0.02)
        return False

    def _look_at(self, started: int) -> None:
        """Check periodically whether the launcher is alive, where this kernel does not report its end.

        Args:
            started: when the launcher started; see `start_ticks`.
        """
        if started and start_ticks(self._pid) == started:
            self._loop.call_later(_LOOK_S, lambda: self._look_at(started))
        else:
            self._loop.stop()
