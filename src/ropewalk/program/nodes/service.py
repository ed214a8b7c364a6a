"""`Service`: an ordinary object whose public methods other nodes call."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ropewalk.calls.client import CLIENT_NAMES
from ropewalk.calls.markers import MethodFacts, methods_of
from ropewalk.program.node import Node, call_arguments, label_of
from ropewalk.program.signatures import misfit

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext

T_co = TypeVar("T_co", covariant=True)


class Service(Node[T_co]):
    """An object made by `cls(*args, **kwargs)` in its own process; clients call its public methods.

    If the class has a method `run`, that is the object's own work: it runs beside the calls, and the node is complete
    when it returns. Without `run`, or if `run` waits in `rw.wait_for_stop`, the service runs until the program stops,
    which happens when all nodes that end by themselves have completed.

    Example:
        >>> import ropewalk as rw
        >>> class Counter:
        ...     def __init__(self, start):
        ...         self.total = start
        ...     def add(self, n):
        ...         self.total += n
        ...         return self.total
        >>> program = rw.Program("counting")
        >>> counter = program.add(rw.Service(Counter, 40))
        >>> with program.launch("threads") as running:
        ...     running.client(counter).add(2)
        42

    Args:
        cls: a class, or a function whose return annotation is the class.
        *args: positional arguments; handles among them, at any depth, arrive as clients.
        **kwargs: keyword arguments, likewise.

    Raises:
        TypeError: `cls` cannot be called.
    """

    kind: ClassVar[str] = "service"

    def __init__(self, cls: Callable[..., T_co], /, *args: Any, **kwargs: Any) -> None:
        if not callable(cls):
            raise TypeError(
                f"Service needs a class and its arguments, as in Service(Replay, capacity=100), "
                f"not {cls!r}, an object of {type(cls).__name__}"
            )
        self.cls: Callable[..., T_co] = cls
        self.args = args
        self.kwargs = kwargs

    @property
    def label(self) -> str:
        return label_of(self.cls)

    def arguments(self) -> dict[str, Any]:
        return call_arguments("cls", self.cls, self.args, self.kwargs)

    def methods(self) -> dict[str, MethodFacts] | None:
        made = _class_made_by(self.cls)
        return None if made is None else methods_of(made)

    @property
    def finite(self) -> bool:
        return callable(getattr(_class_made_by(self.cls), "run", None))

    def problems(self) -> Iterable[str]:
        reason = misfit(self.cls, self.args, self.kwargs)
        if reason:
            yield reason
        made = _class_made_by(self.cls)
        if made is None:
            yield (
                f"{self.label}() does not say which class it returns, so its methods are not known; "
                f"annotate it, as in `def {self.label}(...) -> Learner`, or give the class itself"
            )
            return
        taken = [name for name in CLIENT_NAMES if name in methods_of(made)]
        if taken:
            yield (
                f"{made.__name__} has public methods that nobody could call: {', '.join(taken)}; "
                "of a client, `.all` is every replica and `.any` one of them, so give them other names"
            )
        own_work = inspect.getattr_static(made, "run", None)
        if inspect.isfunction(own_work) and (reason := misfit(own_work, (made,), {})):
            yield (
                f"{made.__name__}.run is the service's own work, which it begins by itself without arguments, but "
                f"{reason}; give a method for others another name"
            )
        if inspect.isabstract(made):
            names = sorted(typing.cast("Any", made).__abstractmethods__)
            yield f"{made.__name__} is abstract: {', '.join(names)} must be defined"

    def run(self, context: NodeContext) -> None:
        args, kwargs = context.resolve((self.args, self.kwargs))
        served = self.cls(*args, **kwargs)
        context.serve(served, self.methods() or {})
        work: Callable[[], object] | None = getattr(served, "run", None)
        if work is not None:
            work()
        else:
            context.wait_for_stop()


def _class_made_by(function: Callable[..., Any]) -> type | None:
    """The class itself, or the class in a function's return annotation."""
    while isinstance(function, functools.partial):
        function = typing.cast("Any", function).func
    if isinstance(function, type):
        return function
    try:
        returned = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):  # an annotation that cannot be read here
        return None
    returned = typing.get_origin(returned) or returned
    return returned if isinstance(returned, type) and returned is not type(None) else None
