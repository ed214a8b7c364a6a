"""Proxies of objects that a manager keeps, as the processes that use them see them.

    proxy.step(x) ─▶ _callmethod ─▶ ObjectCalls ══▶ manager: getattr(object, "step")(x)
    proxy.step.future(x)   await proxy.step.aio(x)   proxy.step.send(x)       the same without waiting

A proxy can be pickled and sent anywhere, also into another object of its manager. There it remains a proxy, and refers
to the object without a link; see `manager_server.py`. The object lives while it has a proxy.
"""

from __future__ import annotations

import contextlib
import os
import xmlrpc.client
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.managers import RemoteError
from typing import Any, ClassVar, Protocol, cast

from ropewalk import errors
from ropewalk.sharing.object_calls import ObjectCalls, facts_of
from ropewalk.sharing.shared_object import ObjectLocation, SharedObject

ALWAYS = frozenset({"__str__", "__repr__", "#GETVALUE"})
"""Methods that every object has, whatever it exposes."""


@dataclass(slots=True)
class Token:
    """Identifies an object of a manager."""

    typeid: str
    address: str
    id: str
    run_id: str
    manager: str
    """The manager's name for messages."""
    fresh: bool = field(default=False, compare=False)
    """Whether the manager already counts this process as a holder of the object."""
    ticket: int = field(default=0, compare=False)
    """The ticket of the pickle that it arrived in; see `refcounts.py`."""

    @property
    def reference(self) -> ObjectLocation:
        """Return the token as the location that other shared objects use."""
        return ObjectLocation(
            self.run_id, self.address, int(self.id, 16), f"{self.typeid} of {self.manager}", self.ticket
        )


class Referent(Protocol):
    """An object of a manager, as the manager's own process sees it."""

    def call(self, method: str, args: Sequence[Any], kwds: Mapping[str, Any]) -> Any:
        """Call one of its methods; values are copied, as between processes."""
        ...

    def lend(self) -> tuple[str, int]:
        """Keep the object until a proxy that is being pickled has arrived; returns its id, and the pickle's ticket."""
        ...


class Manager(Protocol):
    """The manager that runs in this process."""

    address: str

    def arrived(self, id: str, ticket: int) -> Referent:
        """Record that a proxy of one of its objects was unpickled here."""
        ...

    def lend(self, target: int) -> int:
        """Record that a handle of one of its objects is being pickled here; returns the pickle's ticket."""
        ...


here: Manager | None = None
"""The manager that this process runs, if it runs one."""


class BaseProxy(SharedObject):
    """A proxy of an object of a manager; the interface of `multiprocessing.managers.BaseProxy`.

    Args:
        token: identifies the object.
        serializer: "pickle", or "xmlrpclib" for values that XML-RPC can carry.
        manager: kept alive as long as the proxy.
        authkey: ignored; accepted as in the standard library.
        exposed: names of the methods that can be called.
        incref: False if the manager already counts this process as a holder.
        manager_owned: ignored.
    """

    _exposed_: ClassVar[Sequence[str]] = ()
    _isauto = False

    def __init__(
        self,
        token: Token,
        serializer: str,
        manager: Any = None,
        authkey: bytes | None = None,
        exposed: Sequence[str] | None = None,
        incref: bool = True,
        manager_owned: bool = False,
    ) -> None:
        self._token = token
        self._id = token.id
        self._manager = manager
        self._serializer = serializer
        self._exposed = tuple(exposed or self._exposed_)
        self._names = ALWAYS.union(self._exposed)
        self._calls: ObjectCalls | None = None
        self._referent: Referent | None = None
        if here is not None and here.address == token.address:
            self._referent = here.arrived(token.id, token.ticket)
            return
        is_new, token.fresh = token.fresh or not incref, False
        super().__init__(token.reference, is_new=is_new)

    def _callmethod(self, methodname: str, args: Sequence[Any] = (), kwds: Mapping[str, Any] | None = None) -> Any:
        """Call a method of the referent, and return a copy of its result, or a proxy of it.

        Raises:
            RemoteError: the method is not exposed, or its result or exception cannot be sent.
            PeerLost: the manager is gone.
            Exception: raised by the method.
        """
        try:
            if self._referent is None and self._serializer == "pickle" and methodname in self._names:
                return self._way().call(facts_of(methodname), tuple(args), kwds or {})
            return self._call_specially(methodname, args, kwds or {})
        except Exception as error:
            _as_remote_error(error)
            raise

    def _getvalue(self) -> Any:
        """Return a copy of the referent."""
        return self._callmethod("#GETVALUE")

    def _future(self, method: str, args: Sequence[Any], kwds: Mapping[str, Any]) -> Future[Any]:
        """Call a method without waiting; the future gives the result of `_callmethod`."""
        if self._referent is not None:
            return _done(lambda: self._callmethod(method, args, kwds))
        self._check(method)
        return self._way().future(facts_of(method), *self._plain(args, kwds))

    def _send(self, method: str, args: Sequence[Any], kwds: Mapping[str, Any]) -> None:
        """Call a method without waiting and without a result."""
        if self._referent is not None:
            self._callmethod(method, args, kwds)
            return
        self._check(method)
        self._way().send(facts_of(method), *self._plain(args, kwds))

    def _way(self) -> ObjectCalls:
        calls = self._calls
        if calls is None or self._pid != os.getpid():
            self._connection()  # in a forked child: it has no link yet, and counts its own handles
            calls = self._calls = ObjectCalls(self._reference, self._token.manager)
        return calls

    def _call_specially(self, method: str, args: Sequence[Any], kwds: Mapping[str, Any]) -> Any:
        self._check(method)
        if self._referent is not None:
            return self._referent.call(method, args, kwds)
        value = self._way().call(facts_of(method), *self._plain(args, kwds))
        return value if isinstance(value, BaseProxy) else _through_xml(value)

    def _plain(self, args: Sequence[Any], kwds: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if self._serializer == "pickle":
            return tuple(args), kwds
        return tuple(_through_xml(list(args))), _through_xml(dict(kwds))

    def _check(self, method: str) -> None:
        if method not in self._names:
            raise RemoteError(f"method {method!r} of {self._token.typeid} is not in exposed={self._exposed!r}\n")

    def __reduce__(self) -> Any:
        token = self._token
        if self._referent is None:
            token = replace(token, ticket=self._lend().ticket)
        else:
            id, ticket = self._referent.lend()
            token = replace(token, id=id, ticket=ticket)
        kwds = {} if self._exposed == tuple(self._exposed_) and not self._isauto else {"exposed": self._exposed}
        return RebuildProxy, (AutoProxy if self._isauto else type(self), token, self._serializer, kwds)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self._getvalue()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object, typeid {self._token.typeid!r} at {id(self):#x}>"

    def __str__(self) -> str:
        try:
            return self._callmethod("__repr__")
        except Exception:
            return repr(self)[:-1] + "; '__str__()' failed>"


class ProxyMethod:
    """A method of a proxy type, which also gives the proxy the calls that do not wait."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__: str = name

    def __get__(self, proxy: BaseProxy | None, owner: type | None = None) -> Any:
        return self if proxy is None else MethodOfProxy(proxy, self.__name__)

    def __call__(self, proxy: BaseProxy, /, *args: Any, **kwds: Any) -> Any:
        return proxy._callmethod(self.__name__, args, kwds)  # pyright: ignore[reportPrivateUsage]


class MethodOfProxy:
    """A bound method of a proxy, with `future`, `aio` and `send`; can be pickled like the proxy."""

    __slots__ = ("__name__", "__self__")

    def __init__(self, proxy: BaseProxy, name: str) -> None:
        self.__self__ = proxy
        self.__name__ = name

    def __call__(self, *args: Any, **kwds: Any) -> Any:
        """Call, and wait for the result."""
        return self.__self__._callmethod(self.__name__, args, kwds)  # pyright: ignore[reportPrivateUsage]

    def future(self, *args: Any, **kwds: Any) -> Future[Any]:
        """Call without waiting; the future can also be awaited. Cancelling it discards the result."""
        return self.__self__._future(self.__name__, args, kwds)  # pyright: ignore[reportPrivateUsage]

    def aio(self, *args: Any, **kwds: Any) -> Awaitable[Any]:
        """Call from a coroutine."""
        import asyncio  # a slow import, which a caller that awaits has done already

        return asyncio.wrap_future(self.future(*args, **kwds))

    def send(self, *args: Any, **kwds: Any) -> None:
        """Call without waiting; the result or exception of the method is dropped."""
        self.__self__._send(self.__name__, args, kwds)  # pyright: ignore[reportPrivateUsage]

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__name__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MethodOfProxy):
            return NotImplemented
        return self.__self__ is other.__self__ and self.__name__ == other.__name__

    def __hash__(self) -> int:
        return hash((id(self.__self__), self.__name__))

    def __repr__(self) -> str:
        return f"<method {self.__name__} of {self.__self__!r}>"


_types: dict[tuple[str, tuple[str, ...]], type[BaseProxy]] = {}


# Named as in the standard library, like `RebuildProxy` and `AutoProxy`.
def MakeProxyType(name: str, exposed: Sequence[str]) -> type[BaseProxy]:
    """Return a proxy type with the exposed methods; the same type for the same arguments."""
    exposed = tuple(exposed)
    made = _types.get((name, exposed))
    if made is None:
        methods = {method: _operator(method) if _is_dunder(method) else ProxyMethod(method) for method in exposed}
        made = _types[name, exposed] = type(name, (BaseProxy,), {**methods, "_exposed_": exposed})
    return made


def AutoProxy(
    token: Token,
    serializer: str,
    manager: Any = None,
    authkey: bytes | None = None,
    exposed: Sequence[str] | None = None,
    incref: bool = True,
    manager_owned: bool = False,
) -> BaseProxy:
    """Return a proxy with the methods that its object exposes."""
    kind = MakeProxyType(f"AutoProxy[{token.typeid}]", exposed or ())
    proxy = kind(token, serializer, manager=manager, authkey=authkey, incref=incref)
    proxy._isauto = True  # pyright: ignore[reportPrivateUsage]
    return proxy


def RebuildProxy(func: Callable[..., Any], token: Token, serializer: str, kwds: dict[str, Any]) -> Any:
    """Rebuild a proxy that was sent, by its type or by `AutoProxy`."""
    return func(token, serializer, **kwds)


def proxy_of_result(func: Callable[..., Any], token: Token, serializer: str, exposed: Sequence[str]) -> Any:
    """Return a proxy of a method's result; the manager counts the caller as its holder."""
    token.fresh = True
    return func(token, serializer, exposed=exposed)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _operator(name: str) -> Callable[..., Any]:
    """Return a method that Python calls implicitly: a plain function, because nothing else is as fast."""

    def method(self: BaseProxy, /, *args: Any, **kwds: Any) -> Any:
        return self._callmethod(name, args, kwds)  # pyright: ignore[reportPrivateUsage]

    method.__name__ = method.__qualname__ = name
    return method


def _done(call: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future


def _as_remote_error(error: Exception) -> None:
    """Raise multiprocessing's `RemoteError` instead, if the error corresponds to it."""
    is_unsendable = any(kind.__name__ == "MaybeEncodingError" for kind in type(error).__mro__)
    if is_unsendable or isinstance(error, errors.RemoteError):
        text = f"Unserializable message: {error}\n" if is_unsendable else f"{error}\n"
        with contextlib.suppress(AttributeError):
            text = f"{cast('Any', error.__cause__).tb}{text}"
        raise RemoteError(text) from error


def _through_xml(value: Any) -> Any:
    """Convert a value as XML-RPC does, for managers with serializer="xmlrpclib": a tuple becomes a list.

    Raises:
        TypeError: XML-RPC cannot carry it.
    """
    (arrived,), _ = xmlrpc.client.loads(xmlrpc.client.dumps((value,), allow_none=True))
    return arrived


__all__ = [
    "AutoProxy",
    "BaseProxy",
    "MakeProxyType",
    "MethodOfProxy",
    "ProxyMethod",
    "RebuildProxy",
    "Token",
    "proxy_of_result",
]
