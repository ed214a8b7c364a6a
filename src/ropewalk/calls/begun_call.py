"""A call under way whose answer its caller asks for later, while nobody else waits for it.

The loop finishes a future as soon as it can, and its thread is woken for that: to begin to read, for each answer, and
to stop. Here the answer waits in the socket until the thread that wants it reads it:

    begin ─▶ something else ........................ ─▶ result: read, return
                  service: the method, its answer ──▶ (socket) ──┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.calls.pending import PendingCall

if TYPE_CHECKING:
    from ropewalk.calls.replica import CallRequest, ReplicaClient
    from ropewalk.calls.resolver import ServiceRoute


class BegunCall:
    """A call that was sent, for the thread that sent it."""

    __slots__ = ("_pending", "_replica", "_request", "_route")

    def __init__(self, replica: ReplicaClient, request: CallRequest, route: ServiceRoute, pending: PendingCall) -> None:
        self._replica, self._request, self._route, self._pending = replica, request, route, pending

    def result(self) -> Any:
        """Wait for the answer and return it, or raise the call's exception; to be called once.

        A service that was lost meanwhile is called again as for a call that waits, but only from now on.
        """
        return self._replica.answer(self._request, self._route, self._pending)


__all__ = ["BegunCall"]
