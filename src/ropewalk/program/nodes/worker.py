"""`Worker`: a function, or an object with `run`, that works to its end and cannot be called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from ropewalk.program.node import FunctionNode

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext


class Worker(FunctionNode):
    """Runs `function(*args, **kwargs)` to its end; for a class, makes the object and calls its `run()`.

    The program is complete when all of its workers are. A worker's return value is dropped; a worker passes its results
    to services.

    Example:
        >>> import ropewalk as rw
        >>> program = rw.Program("greeting")
        >>> greeter = program.add(rw.Worker(print, "hello"), replicas=2)
        >>> program.launch("threads").wait()
        hello
        hello
        True

    Args:
        function: a function, or a class with a method `run`.
        *args: positional arguments; handles among them, at any depth, arrive as clients.
        **kwargs: keyword arguments, likewise.

    Raises:
        TypeError: `function` cannot be called.
    """

    kind: ClassVar[str] = "worker"

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        if not callable(function):
            raise TypeError(
                f"Worker needs a function, or a class with a method run, and then its arguments, not {function!r}"
            )
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def problems(self) -> Iterable[str]:
        yield from super().problems()
        if isinstance(self.function, type) and not callable(getattr(self.function, "run", None)):
            yield (
                f"class {self.label} has no method `run`, which is what a worker does; "
                "if other nodes call its methods, use Service"
            )

    def run(self, context: NodeContext) -> None:
        args, kwargs = context.resolve((self.args, self.kwargs))
        made = self.function(*args, **kwargs)
        if isinstance(self.function, type):
            made.run()
