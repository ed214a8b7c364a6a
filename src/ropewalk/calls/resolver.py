"""Finds where one replica of a service is now, and what happened to it when a call was lost.

connect ─▶ directory: up ──dial──▶ ServiceRoute        waiting ──▶ asks again
lost    ─▶ directory: the cause of the end ──▶ ServiceLost, ProgramStopped
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ropewalk.calls.caller import Caller
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.errors import DeadlineExceeded, ProgramStopped, ServiceLost, TransportError
from ropewalk.transport.client import DIAL_S

_NEWS_S = 2.0
"""Seconds for which the directory is waited for after a link ended, to learn what happened to the service."""
_LATE_NEWS_S = 30.0
"""The same if nothing listens at its address: its process has ended, and on a busy machine its agent may not have
reported it yet (2 s were too short about once in a hundred runs beside eight busy processes)."""


@dataclass(frozen=True, slots=True)
class ServiceRoute:
    """A route to a service: connection and target, valid until the connection is closed."""

    connection: RpcConnection
    place: ReplicaLocation


class ReplicaResolver:
    """Finds one replica of a service, and explains the loss when it is gone."""

    def __init__(self, caller: Caller, name: str, index: int) -> None:
        self._caller = caller
        self._name = name
        self._index = index
        self.route: ServiceRoute | None = None
        """The last route; its connection may have ended."""
        self._asked_about: ServiceRoute | None = None

    @property
    def words(self) -> str:
        """The replica's name, for messages."""
        return f"{self._name}[{self._index}]" if self._caller.directory.replicas(self._name) > 1 else self._name

    def find(self) -> ReplicaLocation:
        """The replica's location, as far as the directory knows it."""
        return self._caller.directory.find(self._name, self._index)

    def connect(self, call: str, due: float | None) -> ServiceRoute:
        """Find the service and dial it, waiting for it while it starts.

        Args:
            call: the method to be called, for error messages.
            due: monotonic time in seconds at which to give up, or None.

        Raises:
            ServiceLost: it has ended for good.
            DeadlineExceeded: it was not up in time.
            ProgramStopped: the program is being stopped.
        """
        place = self.find()
        while True:
            why = place.cause
            if place.state == "up":
                try:
                    timeout_s = DIAL_S if due is None else max(0.0, min(DIAL_S, due - time.monotonic()))
                    made = self.route = ServiceRoute(self._caller.connection_to(self.words, place, timeout_s), place)
                    return made
                except TransportError as error:
                    why = f"nobody answers at {place.address}: {error}"
            elif place.state == "stopped":
                raise ProgramStopped(f"{self.words} answers no more calls: {place.cause or 'the program is stopping'}")
            elif place.state != "waiting":
                raise self.gone(place)
            if due is not None and time.monotonic() >= due:
                raise self.too_late(call, why)
            pause_s = 0.05 if place.state == "up" else 1.0
            place = self._wait_for_news(place, pause_s if due is None else min(due - time.monotonic(), pause_s))

    def wait_for_move(self, route: ServiceRoute, reason: str) -> None:
        """Wait for a moment for the new location of an object that its process no longer serves.

        Raises:
            ServiceLost: no new location is known.
        """
        if self.route is route:
            self.route = None
        if self._news_of(route) == route.place:
            raise self.gone(ReplicaLocation("failed", cause=reason))

    def what_became(self, route: ServiceRoute, call: str) -> tuple[Exception, bool]:
        """The exception for a call that may have run, and whether the service is up again, or will be."""
        if self.route is route:
            self.route = None
        if self._caller.closed:
            return ProgramStopped(f"{self._caller.closed}, while {self.words} ran {call}()"), False
        place = self._news_of(route)
        if place.state == "stopped":
            why = f": {place.cause}" if place.cause else ""
            return ProgramStopped(f"{self.words} ended with the program while it ran {call}(){why}"), False
        told = place.cause if place != route.place else ""  # else it says how the process before this one ended
        cause = told or route.connection.closed or "it is gone, and nobody saw how"
        comes_back = place.state in ("waiting", "up")
        again = "it is being restarted" if comes_back else "it is not started again"
        message = (
            f"{self.words} was lost while it ran {call}(), which may or may not have had its effect: {cause}; {again}. "
            f"If {call} may safely run twice, mark it @rw.idempotent: then it is repeated by itself. Calls of a client "
            'with on_lost="retry" wait until the service is back, and take effect once'
        )
        lost = ServiceLost(message, service=self._name, replica=self._index, cause=cause, started=True)
        return lost, comes_back

    def gone(self, place: ReplicaLocation) -> ServiceLost:
        """The exception for a call that did not run."""
        cause = place.cause or "it is gone, and nobody saw how"
        message = f"{self.words} has ended and is not started again: {cause}"
        return ServiceLost(message, service=self._name, replica=self._index, cause=cause, started=False)

    def too_late(self, call: str, why: str = "") -> DeadlineExceeded:
        """The exception for a call whose deadline has passed."""
        because = f" ({why})" if why else ""
        return DeadlineExceeded(
            f"{self._name}.{call}() was not answered before the deadline{because}; the call was cancelled. Give it "
            f"more time with rw.deadline(seconds), or ask `ropewalk stack` what {self.words} is doing",
            call=f"{self._name}.{call}",
        )

    def _news_of(self, route: ServiceRoute) -> ReplicaLocation:
        # Many calls may have been lost with one connection: only the first of them waits.
        timeout_s = 0.0 if route is self._asked_about else _NEWS_S
        place = self._wait_for_news(route.place, timeout_s)
        if timeout_s and place == route.place and self._nobody_listens(place):
            place = self._wait_for_news(place, _LATE_NEWS_S)
        self._asked_about = route
        return place

    def _nobody_listens(self, place: ReplicaLocation) -> bool:
        try:
            self._caller.connection_to(self.words, place, _NEWS_S)  # if it answers, the next call needs this link
        except (TransportError, ProgramStopped) as error:
            return isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError)
        return False

    def _wait_for_news(self, seen: ReplicaLocation, timeout_s: float) -> ReplicaLocation:
        return self._caller.directory.wait_for_news(self._name, self._index, seen, timeout_s)


__all__ = ["ReplicaResolver", "ServiceRoute"]
