"""`Handle`: stands for a node while the graph is built, and becomes a client inside a node.

    setup                          launch                      execution
    handle = program.add(Service)
    program.add(Worker(f, handle)) handle travels by its name  f(client): client.push(...)

Handles are found and replaced wherever arguments may hold them: in lists, tuples, sets, dictionaries, dataclasses,
`functools.partial` and `Deferred`, at any depth.
"""

from __future__ import annotations

import collections
import contextvars
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

from ropewalk.calls.markers import MethodFacts
from ropewalk.errors import HandleNotConnected
from ropewalk.near_names import check_choice, instead_of
from ropewalk.program.deferred import Deferred
from ropewalk.program.node import Node

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Address = int | Literal["any", "all"]
OnLost = Literal["raise", "retry"]

pickled_handles: contextvars.ContextVar[list[str]] = contextvars.ContextVar("pickled_handles")
"""Names of the handles pickled in this context; detects a handle that is hidden inside a user's object."""


@dataclasses.dataclass(slots=True, eq=False)
class Vertex:
    """The facts known about a node's name, shared by all handles that a program made for it."""

    program: object | None
    """The program that made the handle; None for an unpickled handle."""
    node: Node[Any] | None = None
    """None while the node is declared but not yet added."""
    sent_methods: Mapping[str, MethodFacts] | None = None
    """The node's methods, as recorded in a pickled handle."""

    @property
    def methods(self) -> Mapping[str, MethodFacts] | None:
        """The methods that can be called, or None if they are not known."""
        return self.sent_methods if self.node is None else self.node.methods()


class Handle(Generic[T_co]):
    """Stands for a node of a program; made by `program.add` and `program.declare`.

    Pass it to the constructor of another node, where it arrives as a client. It cannot be called itself.

    Attributes:
        all: a handle whose client calls every replica and returns a list.
        any: a handle whose client calls one replica, chosen at each call.
    """

    __slots__ = ("_address", "_name", "_on_lost", "_vertex")

    def __init__(self, name: str, vertex: Vertex, address: Address = "any", on_lost: OnLost = "raise") -> None:
        self._name = name
        self._vertex = vertex
        self._address: Address = address
        self._on_lost: OnLost = on_lost

    @property
    def name(self) -> str:
        """Name of the node."""
        return self._name

    @property
    def address(self) -> Address:
        """The replica that it addresses: an index, "any" or "all"."""
        return self._address

    @property
    def methods(self) -> Mapping[str, MethodFacts] | None:
        """The methods that can be called; None if the node is not added yet or cannot be called."""
        return self._vertex.methods

    @property
    def on_lost(self) -> OnLost:
        """How a client treats calls that were lost with their service."""
        return self._on_lost

    def client(self, *, on_lost: OnLost = "raise") -> Handle[T_co]:
        """Return a handle whose client treats lost calls differently.

        Args:
            on_lost: how to treat a call when the service ends while the call may have run. (A method marked
                `@idempotent` is repeated in any case.) "raise" raises `ServiceLost`. "retry" waits until the service is
                back and repeats the call, which takes effect once: calls are numbered, so the service knows whether it
                has run this one, even after it was restored from a checkpoint. Effects since that checkpoint are lost,
                as is any other state. Calls made with `send` and streams are not repeated.

        Returns:
            A handle to the same node.

        Raises:
            ValueError: `on_lost` is neither "raise" nor "retry".
        """
        return Handle(self._name, self._vertex, self._address, checked_on_lost(on_lost))

    @property
    def all(self) -> Handle[T_co]:
        return Handle(self._name, self._vertex, "all", self._on_lost)

    @property
    def any(self) -> Handle[T_co]:
        return Handle(self._name, self._vertex, "any", self._on_lost)

    def __getitem__(self, replica: int) -> Handle[T_co]:
        if not isinstance(replica, int) or isinstance(replica, bool) or replica < 0:
            raise TypeError(f"{self!r}[...] takes the index of a replica, 0 or more, not {replica!r}")
        return Handle(self._name, self._vertex, replica, self._on_lost)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle):
            return NotImplemented
        other = cast("Handle[Any]", other)
        mine, others = (self._name, self._address, self._on_lost), (other._name, other._address, other._on_lost)
        return mine == others

    def __hash__(self) -> int:
        return hash((self._name, self._address, self._on_lost))

    def __repr__(self) -> str:
        address = "" if self._address == "any" else f", {self._address!r}"
        on_lost = "" if self._on_lost == "raise" else f", on_lost={self._on_lost!r}"
        return f"Handle({self._name!r}{address}{on_lost})"

    def __reduce__(self) -> Any:
        pickled = pickled_handles.get(None)
        if pickled is not None:
            pickled.append(self._name)
        return _unpickled, (self._name, self._address, self._vertex.methods, self._on_lost)

    if not TYPE_CHECKING:  # so that a type checker reports that a handle has no such attribute

        def __getattr__(self, name):
            if name.startswith("_"):  # pickle, copy, inspect and notebooks ask for such names
                raise AttributeError(f"'Handle' object has no attribute {name!r}")
            raise self._not_connected(f".{name}", name)

        def __call__(self, *args, **kwargs):
            raise self._not_connected("()", "__call__")

        def __iter__(self):
            raise self._not_connected(" in a loop", "")

        def __len__(self):
            raise self._not_connected(" in len()", "")

        def __bool__(self):
            return True

    def _not_connected(self, use: str, method: str) -> HandleNotConnected:
        name, methods = self._name, self._vertex.methods
        call = f".{method}(...)" if method and method != "__call__" else "(...)"
        lesson = (
            f"`{name}{use}` was used, but {name!r} is still a handle: it only stands for the node. Give it to the node "
            f"that calls it, as in program.add(rw.Worker(f, {name})): there f gets a client and can do `client{call}`. "
            f"It is found in lists, dictionaries, dataclasses and the like, not in other objects or in the variables "
            f"that f itself refers to. From outside the graph, launch and ask: "
            f"`running = program.launch()`, then `running.client({name!r}){call}`."
        )
        if methods and method and method not in methods:
            lesson += f" (And it will have no method {method!r}{instead_of(method, methods, 'it has')}.)"
        return HandleNotConnected(lesson, handle=name)


def vertex_of(handle: Handle[Any]) -> Vertex:
    """The facts known about a handle's node."""
    return handle._vertex  # pyright: ignore[reportPrivateUsage]  # a user's service may well have a method `vertex`


def checked_on_lost(on_lost: OnLost) -> OnLost:
    """Check the value of `on_lost` and return it.

    Raises:
        ValueError: it is neither "raise" nor "retry".
    """
    check_choice("on_lost", on_lost, get_args(OnLost))
    return on_lost


def _unpickled(name: str, address: Address, methods: Mapping[str, MethodFacts] | None, on_lost: OnLost) -> Handle[Any]:
    return Handle(name, Vertex(None, sent_methods=methods), address, on_lost)


def handles_in(value: Any) -> Iterator[tuple[str, Handle[Any]]]:
    """Find every handle in a value, with the path to it, such as `[0].replay`; a handle found twice is given twice.

    A container that contains itself is visited once.
    """
    return of_kind_in(value, cast("type[Handle[Any]]", Handle))


def of_kind_in(value: Any, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Find objects of any type in the places where `handles_in` looks."""
    return _walk(value, kind, "", set())


def _walk(value: Any, kind: type[T], path: str, above: set[int]) -> Iterator[tuple[str, T]]:
    if isinstance(value, kind):
        yield path, value
        return
    if id(value) in above:
        return
    above.add(id(value))
    for step, part in _parts(value):
        yield from _walk(part, kind, path + step, above)
    above.discard(id(value))


def replace_handles(value: Any, make: Callable[[Handle[Any]], Any], construct: Callable[[Deferred[Any]], Any]) -> Any:
    """Return the value with `make(handle)` for each handle and `construct(deferred)` for each `Deferred`.

    The arguments of a deferred value are replaced first. Only containers that hold one of these are copied; every other
    object is passed on as it is, and shared objects stay shared.
    """
    return _Replacement(make, construct).of(value)


class _Replacement:
    """One pass over a value."""

    def __init__(self, make: Callable[[Handle[Any]], Any], construct: Callable[[Deferred[Any]], Any]) -> None:
        self._make = make
        self._construct = construct
        self._done: dict[int, Any] = {}  # by the identity of the original, which the value keeps alive

    def of(self, value: Any) -> Any:
        if isinstance(value, Handle):
            return self._make(cast("Handle[Any]", value))
        if id(value) in self._done:
            return self._done[id(value)]
        if not _concerns_us(value, set()):
            return value
        replaced = self._copy(value)
        self._done[id(value)] = replaced
        return replaced

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Deferred):
            deferred = cast("Deferred[Any]", value)
            args, kwargs = self.of(deferred.args), self.of(deferred.kwargs)
            return self._construct(Deferred(deferred.function, *args, **kwargs))
        if isinstance(value, functools.partial):
            partial = cast("functools.partial[Any]", value)
            return type(partial)(self.of(partial.func), *self.of(partial.args), **self.of(partial.keywords))
        if isinstance(value, tuple):
            items = [self.of(item) for item in cast("tuple[Any, ...]", value)]
            kind: Any = cast("Any", value).__class__
            return kind(*items) if hasattr(kind, "_fields") else kind(items)
        if isinstance(value, set | frozenset):
            return cast("Any", value).__class__(self.of(item) for item in cast("set[Any]", value))
        # A container that may contain itself is recorded before its parts are visited.
        twin = self._done[id(value)] = copy.copy(value)
        if isinstance(value, dict):
            for key, item in cast("dict[Any, Any]", value).items():
                twin[key] = self.of(item)
        elif isinstance(value, list | collections.deque):
            for index, item in enumerate(cast("list[Any]", value)):
                twin[index] = self.of(item)
        else:
            for name, item in _fields(value):
                object.__setattr__(twin, name, self.of(item))
        return twin


def _concerns_us(value: Any, above: set[int]) -> bool:
    """Whether a value contains a handle or a deferred value."""
    if isinstance(value, Handle | Deferred):
        return True
    if id(value) in above:
        return False
    above.add(id(value))  # kept afterwards: a value visited once contains nothing to replace
    return any(_concerns_us(part, above) for _, part in _parts(value))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts in which a handle may be, each with the step from the value to it."""
    if isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield f"[{key!r}]", part
    elif isinstance(value, list | tuple | collections.deque):
        names: Sequence[str] = getattr(cast("Any", value), "_fields", ())
        for index, part in enumerate(cast("Sequence[Any]", value)):
            yield f".{names[index]}" if names else f"[{index}]", part
    elif isinstance(value, set | frozenset):
        for part in cast("set[Any]", value):
            yield ".<element>", part
    elif isinstance(value, functools.partial):
        partial = cast("functools.partial[Any]", value)
        yield ".func", partial.func
        yield from _arguments(partial.args, partial.keywords)
    elif isinstance(value, Deferred):
        deferred = cast("Deferred[Any]", value)
        yield from _arguments(deferred.args, deferred.kwargs)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for name, part in _fields(value):
            yield f".{name}", part


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for index, part in enumerate(args):
        yield f".args[{index}]", part
    for key, part in kwargs.items():
        yield f".kwargs[{key!r}]", part


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):  # a field with init=False may not be set
            yield field.name, getattr(value, field.name)
