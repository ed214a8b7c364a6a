"""Marks by which the author of a class says how its methods are called from other processes.

    class Policy:
        @rw.method                                      # typed .future, .aio and .send
        @rw.batched(max_size=32, max_wait_s=0.002)      # concurrent calls become one
        def act(self, observation): ...

Marks are optional: every public method of an object can be called. A mark is a `MethodFacts` on the function; marks
stack in any order. `methods_of` gives the table of methods by which the clients and the server of a class work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

import msgspec

from ropewalk.argument_kinds import check_kind, check_number

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
R_co = TypeVar("R_co", covariant=True)

MARK = "__ropewalk__"
"""The attribute of a function that holds its marks."""


class MethodFacts(msgspec.Struct, frozen=True, array_like=True):
    """How one method is called."""

    name: str
    streams: bool = False
    """Whether it is a generator function, so that a call returns an iterator."""
    concurrency: int = 0
    """Maximum number of calls at once, beside those of other methods; 0: one at a time with all other such methods."""
    batch_size: int = 0
    """Maximum number of calls, or of rows, in one batch; 0: calls are not batched."""
    batch_wait_s: float = 0.0
    """Seconds for which the first call of a batch waits for others."""
    idempotent: bool = False
    """Whether it may be called again when it is not known whether the first call ran."""
    free: bool = False
    """Whether any number of calls may run at once, short ones on the loop's thread; the object does its own locking."""
    with_code: bool = False
    """Whether arguments and results carry the code that they need from `__main__`, which the other side may not have.
    """
    concatenates: bool = False
    """Whether the calls of a batch bring rows, which are joined; otherwise each call is an entry of a new first axis.
    """
    brief: bool = False
    """Whether concurrent calls run on the loop's thread, one after the other, until one of them waits or takes long."""


class BoundMethod(Generic[P, R_co]):
    """A method of a local object, with the same ways of calling as a client's method; here they act at once."""

    __slots__ = ("__self__", "__wrapped__")

    def __init__(self, instance: object, function: Callable[P, R_co]) -> None:
        self.__self__: object = instance
        self.__wrapped__: Callable[P, R_co] = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.__wrapped__(*args, **kwargs)

    def future(self, *args: P.args, **kwargs: P.kwargs) -> Future[R_co]:
        """Call, and return a future of the result; the future of a client is done when the answer arrives."""
        future: Future[R_co] = Future()
        try:
            future.set_result(self.__wrapped__(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R_co]:
        """Call; the result is awaited."""

        async def answer() -> R_co:
            return self.__wrapped__(*args, **kwargs)

        return answer()

    def send(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call and drop the result; a client does not wait and does not learn of failures."""
        self.__wrapped__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in BoundMethod.__slots__:  # while it is being unpickled or copied
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)  # __name__, __doc__ and other attributes of functions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundMethod) and self.__wrapped__ == cast("Any", other).__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__wrapped__.__name__)


# In lower case because it is written as a decorator, like `property`.
class method(Generic[P, R]):
    """Mark a method as one that is called from other processes, so that `.future`, `.aio` and `.send` have types.

    Clients have these without the mark, too, but type checkers do not know them.

    Example:
        >>> from ropewalk import method
        >>> class Counter:
        ...     @method
        ...     def add(self, n: int) -> int:
        ...         return n + 1
        >>> Counter().add.future(1).result()
        2
    """

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self.__wrapped__: Any = function
        functools.update_wrapper(self, function)  # copies the marks too
        _refuse_async(function)

    def __repr__(self) -> str:
        return f"<method {getattr(self.__wrapped__, '__qualname__', self.__wrapped__)}>"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> BoundMethod[P, R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        function: Any = self.__wrapped__
        if instance is None and inspect.isfunction(function):
            return self
        return BoundMethod(owner if instance is None else instance, function.__get__(instance, owner))

    def __call__(self, instance: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(instance, *args, **kwargs)


def batched(max_size: int, max_wait_s: float, *, concatenate: bool = False) -> Callable[[F], F]:
    """Merge concurrent calls of a method into one call, such as for central inference.

    A batch runs when it is full, when all callers of the last batch have called again, or when its first call has
    waited for `max_wait_s`. So a single caller does not wait, and callers that call repeatedly share a batch.

    Args:
        max_size: maximum number of calls in a batch; with `concatenate`, of rows. A call with more rows than that runs
            alone.
        max_wait_s: maximum number of seconds for which the first call of a batch waits for the callers of the last one.
        concatenate: whether calls bring arrays with any number of rows each, which are joined along their first axis,
            and get as many entries of the result; calls whose other values differ run one after the other. Otherwise
            the arguments of the calls are stacked on a new first axis.

    Returns:
        A decorator.

    Raises:
        TypeError: `max_size` is not a whole number, or the method is a generator.
        ValueError: a value is out of its range.

    Example:
        >>> from ropewalk import batched
        >>> class Policy:
        ...     @batched(max_size=256, max_wait_s=0.002, concatenate=True)
        ...     def act(self, observations):  # of 8 environments here, and of 4 there: of shape (12, ...)
        ...         return observations.argmax(axis=1)
    """
    check_kind("max_size", max_size, int, "two numbers, such as @batched(max_size=32, max_wait_s=0.002)", required=True)
    check_number("max_size", max_size, int, "a number of calls", least=1, required=True)
    check_number("max_wait_s", max_wait_s, int | float, "a number of seconds", least=0, finite=True, required=True)
    return functools.partial(_mark, batch_size=max_size, batch_wait_s=float(max_wait_s), concatenates=bool(concatenate))


def concurrent(n: int) -> Callable[[F], F]:
    """Let up to `n` calls of a method run at the same time, beside the other methods of its object.

    The method does its own locking.

    Args:
        n: maximum number of calls at once.

    Returns:
        A decorator.

    Raises:
        TypeError: `n` is not a whole number.
        ValueError: `n` is below 1.
    """
    check_kind("n", n, int, "a number of calls, such as @concurrent(4)", required=True)
    check_number("n", n, int, "a number of calls", least=1, required=True)
    return functools.partial(_mark, concurrency=n)


def brief(function: F) -> F:
    """Run the calls of a method marked `@concurrent` on the loop's thread until one waits or takes long.

    To hand a call over to a thread of its own costs more than many a call. The method waits by `rw.wait_for`, which
    hands over the loop at once; the calls after it run in threads until one of them is short again.
    """
    return _mark(function, brief=True)


def idempotent(function: F) -> F:
    """Allow a call to be repeated if its service was restarted and it is not known whether the call ran."""
    return _mark(function, idempotent=True)


def methods_of(cls: type) -> dict[str, MethodFacts]:
    """Return the methods of a class that a client can call, by name.

    These are its public functions, including inherited ones, and `__call__`; not `run`, which is the object's own work,
    and not coroutine functions. Names that begin with an underscore are private.
    """
    methods: dict[str, MethodFacts] = {}
    attributes = {name: found for ancestor in reversed(cls.__mro__) for name, found in vars(ancestor).items()}
    for name, found in attributes.items():
        is_public = name == "__call__" or not (name.startswith("_") or name == "run")
        if is_public and _is_method(found) and not _is_async(_innermost(found)):
            streams = inspect.isgeneratorfunction(_innermost(found))
            methods[name] = msgspec.structs.replace(_marks(found), name=name, streams=streams)
    return methods


def _mark(function: F, **marks: Any) -> F:
    """Add marks to a function, and return the function itself."""
    if not _is_method(function):
        raise TypeError(f"only a method or function can be marked, not {function!r}")
    _refuse_async(function)
    facts = msgspec.structs.replace(_marks(function), **marks)
    if facts.batch_size and inspect.isgeneratorfunction(_innermost(function)):
        raise TypeError(f"{facts.name} is a generator, and the calls of a generator cannot be batched; drop @batched")
    setattr(function, MARK, facts)
    return function


def _is_method(found: object) -> bool:
    """Whether an attribute, as found in its class, is a method and not a property, nested class or value."""
    if isinstance(found, classmethod | functools.partialmethod | functools.singledispatchmethod):
        return True
    return callable(found) and not isinstance(found, type) and hasattr(type(found), "__get__")


def _marks(found: Any) -> MethodFacts:
    """The marks of a function so far; a mark may stand above or below `@method` and `@staticmethod`."""
    facts = getattr(found, MARK, None)
    if facts is not None:
        return facts
    if isinstance(found, method | staticmethod | classmethod):
        return _marks(cast("Any", found).__wrapped__)
    return MethodFacts(getattr(found, "__name__", ""))


def _innermost(found: Any) -> Any:
    """The innermost function; other decorators stay in place, because they may change what a call returns."""
    while isinstance(found, method | staticmethod | classmethod):
        found = cast("Any", found).__wrapped__
    if isinstance(found, functools.partialmethod):
        return cast("Any", found).func
    return found


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _refuse_async(found: object) -> None:
    function = _innermost(found)
    if _is_async(function):
        raise TypeError(
            f"{function.__qualname__} is an async function, and a node serves ordinary ones; "
            "write `def` there and await at the caller: `await client.name.aio(...)`"
        )
