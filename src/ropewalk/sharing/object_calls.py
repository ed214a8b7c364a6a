"""Calls to one object of a manager: those of `calls/`, with the errors of managers.

    proxy ─▶ ObjectCalls ── the fast path of ReplicaClient ──▶ link ══▶ manager
                 └─ no answer ─▶ what is known of its end ─▶ PeerLost

An object of a manager does not move and does not come back: a call that does not reach it fails immediately.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.calls import call_context
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.calls.markers import MethodFacts
from ropewalk.calls.messages import Call
from ropewalk.calls.payloads import PackedValue
from ropewalk.calls.pending import Busy, Lost, NotServed
from ropewalk.calls.replica import ReplicaClient
from ropewalk.calls.resolver import ReplicaResolver, ServiceRoute
from ropewalk.errors import PeerLost
from ropewalk.sharing.membership import SharingMember, member_of_run
from ropewalk.sharing.shared_object import ObjectLocation
from ropewalk.transport.serialization import dumps_plain

_SMALL_BYTES = 1 << 16
"""Larger arguments take the slow path, which supports them."""
ends: dict[str, Callable[[], str]] = {}
"""Descriptions of how the managers that this process has started ended, by address; waits a moment for news."""


class ObjectCalls(ReplicaClient):
    """Calls one object, from any thread, with or without waiting.

    Args:
        reference: the location of the object.
        manager: the manager's name for messages.

    Raises:
        PeerLost: the object belongs to another run.
    """

    def __init__(self, reference: ObjectLocation, manager: str) -> None:
        member = member_of_run(reference.run_id)
        super().__init__(member.caller, reference.label, 0)
        self._where = _Where(member, reference, manager)
        self._target = reference.target

    def call(self, facts: MethodFacts, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        # Most calls have a few plain arguments and no deadline: for these, this does the same in half the steps.
        route = self._where.route
        if route is None or kwargs or call_context.current.get() is not None:
            return super().call(facts, args, kwargs)
        packed = dumps_plain(args) if args else b""
        if packed is None or len(packed) > _SMALL_BYTES or route.connection.closed:
            return super().call(facts, args, kwargs)
        message = Call(0, self._target, facts.name, False, None, (), (), 0)
        try:
            return route.connection.ask(message, PackedValue((packed,) if args else ()))
        except Busy:
            return super().call(facts, args, kwargs)
        except Lost as error:
            if error.sent:
                raise self._where.what_became(route, facts.name)[0] from None
            return super().call(facts, args, kwargs)
        except NotServed as error:
            return self._where.wait_for_move(route, str(error))


@functools.lru_cache(maxsize=1024)
def facts_of(method: str) -> MethodFacts:
    """Return how a method of an object of a manager is called."""
    return MethodFacts(method, free=True, with_code=True)


class _Where(ReplicaResolver):
    """Finds the object, and the error to raise if it is gone."""

    def __init__(self, member: SharingMember, reference: ObjectLocation, manager: str) -> None:
        super().__init__(member.caller, reference.label, 0)
        self._manager = manager
        self._member = member
        self._reference = reference

    @property
    def words(self) -> str:
        return self._reference.label

    def find(self) -> ReplicaLocation:
        known = self._caller.known(self._reference.address)
        return ReplicaLocation("up" if known else "waiting", self._reference.address, self._reference.target)

    def connect(self, call: str, due: float | None) -> ServiceRoute:
        reference = self._reference
        try:
            connection = self._member.connection_to(reference.address)
        except PeerLost as error:
            raise self._lost(f"the {reference.label} is gone", str(error)) from None
        connection.where = self._manager
        made = self.route = ServiceRoute(connection, self._member.place(reference.address, reference.target))
        return made

    def wait_for_move(self, route: ServiceRoute, reason: str) -> None:
        raise PeerLost(
            f"the {self.words} is gone: its manager no longer has it, because nothing referred to it",
            peer=self._reference.address,
        )

    def what_became(self, route: ServiceRoute, call: str) -> tuple[Exception, bool]:
        why = f"nobody answers any more at {self._reference.address}: {route.connection.closed}"
        what = f"the {self.words} was lost while it ran {call}(), which may or may not have had its effect"
        return self._lost(what, why), False

    def _lost(self, what: str, why: str) -> PeerLost:
        end = ends.get(self._reference.address)
        return PeerLost(f"{what}: {(end and end()) or why}", peer=self._reference.address)


__all__ = ["ObjectCalls", "ends", "facts_of"]
