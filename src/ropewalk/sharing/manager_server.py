"""The objects of a manager, in its process: made by their type's callable, served, and released with their last proxy.

    create("Simulator", seed) ─▶ registry: callable(seed) ─▶ ServedObject ─ served in the manager's depot ─▶ proxies
                                                                │
    a proxy that arrives here (a dict in a list) ─ refers to ───┘    no link, no count: an ordinary reference

So an object that only objects of the manager refer to lives as long as these, and reference cycles are collected like
any others. When such an inner proxy is sent out again, its object is served anew if it was not.
"""

from __future__ import annotations

import functools
import hmac
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import AuthenticationError
from multiprocessing.managers import RemoteError, public_methods  # type: ignore[attr-defined]  # not in the stubs
from typing import Any, cast
from weakref import WeakValueDictionary

from ropewalk.calls import call_context
from ropewalk.calls.incoming import Incoming
from ropewalk.errors import PeerLost
from ropewalk.sharing.depot import Stored
from ropewalk.sharing.depot_process import DepotServer
from ropewalk.sharing.object_calls import facts_of
from ropewalk.sharing.proxies import ALWAYS, Token, proxy_of_result
from ropewalk.sharing.shared_object import new_ticket
from ropewalk.transport.pickle_with_main import dumps_with_code
from ropewalk.transport.serialization import loads

CABINET_TARGET = 2
"""The target of the server itself in its manager: the one after the depot."""
_WHICH = ("create", "greet", "num_objects", "describe")
_EMPTY: dict[str, str] = {}
"""The types of a dictionary's views; they arrive as lists."""
_VIEWS = frozenset((type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())))


@dataclass(frozen=True, slots=True)
class RegisteredType:
    """A registered type."""

    callable: Any
    exposed: Sequence[str] | None
    method_to_typeid: Mapping[str, str] | None
    proxytype: Any


class ManagerServer:
    """Makes and serves the objects of a manager.

    Args:
        depot_server: the depot server through which they are called.
        registry: the registered types.
        token: the token of the manager itself.
        authkey: the key that connecting processes must know.
    """

    def __init__(
        self, depot_server: DepotServer, registry: Mapping[str, RegisteredType], token: Token, authkey: bytes
    ) -> None:
        self.address = depot_server.address
        self.token = token
        self.depot = depot_server.depot
        self.exhibits: WeakValueDictionary[int, ServedObject] = WeakValueDictionary()
        """The served objects, by target; the depot holds them."""
        self.registry = registry
        self._authkey = authkey
        self._server = depot_server.server
        served = depot_server.server.serve(self, {name: facts_of(name) for name in _WHICH}, token.manager)
        assert served.target == CABINET_TARGET

    # Methods of the manager itself

    def create(self, typeid: str, args: Sequence[Any], kwds: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
        """Make an object, held by the caller; returns its target and its methods; raises as `make`."""
        exhibit = self.make(typeid, args, kwds)
        exhibit.target = self.depot.keep(exhibit.stored())
        self.exhibits[exhibit.target] = exhibit
        return exhibit.target, exhibit.exposed

    def greet(self, proof: bytes) -> str:
        """Return the manager's name for messages, to callers that know its key.

        Raises:
            AuthenticationError: the caller does not know the key.
        """
        if not hmac.compare_digest(proof, proof_of(self._authkey, self.address)):
            raise AuthenticationError("digest sent was rejected: the authkey is not that of this manager")
        return self.token.manager

    def num_objects(self) -> int:
        """Return the number of objects that other processes refer to."""
        return len(self.depot.stored)

    def describe(self) -> str:
        """Describe each of them, with the processes that refer to it."""
        lines: list[str] = []
        with self.depot.lock:
            stored = dict(self.depot.stored)
        for target, each in sorted(stored.items()):
            exhibit = self.exhibits.get(target)
            what = str(exhibit.object)[:75] if exhibit else each.served.label if each.served else ""
            lines.append(f"  {target:x}:       held by {', '.join(each.kept.holders.values())}\n    {what}")
        return "\n".join(lines)

    # Objects

    def make(self, typeid: str, args: Sequence[Any], kwds: Mapping[str, Any]) -> ServedObject:
        """Make an object of a registered type, with the methods that the type exposes.

        Args:
            typeid: the name of the registered type.
            args: positional arguments of its callable.
            kwds: keyword arguments of its callable.

        Raises:
            RemoteError: there is no such type.
            Exception: raised by its callable.
        """
        kind = self.registry.get(typeid)
        if kind is None:
            raise RemoteError(f"the manager knows no type {typeid!r}; it knows: {', '.join(sorted(self.registry))}\n")
        if kind.callable is None and (kwds or len(args) != 1):
            raise ValueError("Without callable, must have one non-keyword argument")
        obj = args[0] if kind.callable is None else kind.callable(*args, **kwds)
        exposed: Sequence[str] = cast("Any", public_methods)(obj) if kind.exposed is None else kind.exposed
        return ServedObject(self, typeid, obj, (*exposed, *(kind.method_to_typeid or ())), kind.method_to_typeid or {})

    def token_of(self, typeid: str, id: str) -> Token:
        """Return the token that its proxies hold."""
        return Token(typeid, self.address, id, self.token.run_id, self.token.manager)

    def serve(self, exhibit: ServedObject) -> Stored:
        """Make the methods of an object callable."""
        names = {*exhibit.exposed, *ALWAYS}
        ways = types.SimpleNamespace(**{name: exhibit.method(name) for name in names})
        return Stored(served=self._server.serve(ways, {name: facts_of(name) for name in sorted(names)}, exhibit.typeid))

    def arrived(self, id: str, ticket: int) -> ServedObject:
        """Record that a proxy of one of these objects was unpickled here.

        Raises:
            PeerLost: the object had no references left, and is gone.
        """
        with self.depot.lock:
            target = int(id, 16)
            exhibit, stored = self.exhibits.get(target), self.depot.stored.get(target)
            if exhibit is None:
                raise PeerLost(f"object {id} of {self.token.manager} is gone, because nothing referred to it", peer="")
            if stored and ticket:
                stored.kept.arrive(ticket, time.monotonic())
        return exhibit

    def lend(self, target: int) -> int:
        """Record that a handle of one of these objects is being pickled here, usually for the present caller."""
        ticket = new_ticket()
        call = call_context.current.get()
        lender: object = self.depot.calls.caller(call.link) if isinstance(call, Incoming) else self
        with self.depot.lock:
            stored = self.depot.stored.get(target)
            if stored:
                stored.kept.lend(lender, ticket)
        return ticket


class ServedObject:
    """One object of a manager; a `Referent` of the proxies in the manager's own process."""

    def __init__(
        self, cabinet: ManagerServer, typeid: str, obj: object, exposed: tuple[str, ...], typeids: Mapping[str, str]
    ) -> None:
        self.typeid = typeid
        self.object = obj
        self.exposed = exposed
        self.target = 0
        self._cabinet = cabinet
        self._typeids = typeids

    def stored(self) -> Stored:
        """Return the object in the form that the depot keeps."""
        return self._cabinet.serve(self)

    def method(self, name: str) -> Any:
        """Return the function that is called for one of its methods."""
        if name == "#GETVALUE":
            return lambda: self.object

        def call(*args: Any, **kwds: Any) -> Any:
            method = getattr(self.object, name, None)
            if method is None:
                raise RemoteError(f"{type(self.object).__qualname__!r} object has no attribute {name!r}\n")
            value = method(*args, **kwds)
            return cast("Any", list(value)) if type(value) in _VIEWS else value

        typeid = self._typeids.get(name)
        return functools.partial(self._call_for_proxy, call, typeid) if typeid else call

    def _call_for_proxy(self, method: Callable[..., Any], typeid: str, /, *args: Any, **kwds: Any) -> _ProxyOf:
        cabinet = self._cabinet
        target, exposed = cabinet.create(typeid, (method(*args, **kwds),), {})
        kind = cabinet.registry[typeid]
        return _ProxyOf(kind.proxytype, cabinet.token_of(typeid, f"{target:x}"), "pickle", exposed)

    # For proxies in the manager's own process

    def call(self, method: str, args: Sequence[Any], kwds: Mapping[str, Any]) -> Any:
        args, kwds = _copy((tuple(args), dict(kwds)))
        typeid = self._typeids.get(method)
        if typeid is None:
            return _copy(self.method(method)(*args, **kwds))
        cabinet = self._cabinet
        made = cabinet.make(typeid, (getattr(self.object, method)(*args, **kwds),), {})
        id, ticket = made.lend()
        token = replace(cabinet.token_of(typeid, id), ticket=ticket)
        return cabinet.registry[typeid].proxytype(token, "pickle", exposed=made.exposed)

    def lend(self) -> tuple[str, int]:
        depot = self._cabinet.depot
        with depot.lock:
            if self.target not in depot.stored:
                stored = self.stored()
                assert stored.served
                self.target = stored.served.target
                self._cabinet.exhibits[self.target] = self
                depot.stored[self.target] = stored
            return f"{self.target:x}", self._cabinet.lend(self.target)


class _ProxyOf:
    """Stands for a proxy in a method's result, and becomes one when the result is loaded."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        return proxy_of_result, self._parts


def proof_of(authkey: bytes, address: str) -> bytes:
    """Return the proof that a process knows the key of a manager."""
    return hmac.digest(authkey, b"ropewalk manager at " + address.encode(), "sha256")


def _copy(value: Any) -> Any:
    payload = dumps_with_code(value, what="value")
    return loads(payload.pickle, [bytearray(buffer) for buffer in payload.buffers])


__all__ = ["CABINET_TARGET", "ManagerServer", "RegisteredType", "proof_of"]
