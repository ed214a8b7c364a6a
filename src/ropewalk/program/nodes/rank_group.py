"""`RankGroup`: one function in each of N processes that know each other's addresses, for torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from ropewalk.program.node import Node, call_arguments, label_of
from ropewalk.program.signatures import misfit

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext


class RankGroup(Node[Any]):
    """Runs `function(*args, **kwargs)` in each of `size` processes, with the environment that `torchrun` would set.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set before the function is called,
    so `torch.distributed.init_process_group("gloo")` needs no address. The rendezvous is on the first rank's host and
    waits for all ranks; if there are several hosts, they must be able to reach each other. The ranks form a gang: when
    one dies and the restart policy allows it, all restart with a new generation and address.

    Args:
        function: called in each rank.
        size: number of ranks.
        *args: positional arguments of the function; handles among them, at any depth, arrive as clients.
        **kwargs: keyword arguments, likewise.

    Raises:
        TypeError: `function` cannot be called, or `size` is not a whole number.
        ValueError: `size` is below 1.
    """

    kind: ClassVar[str] = "rank_group"

    def __init__(self, function: Callable[..., Any], size: int, *args: Any, **kwargs: Any) -> None:
        if not callable(function):
            raise TypeError(f"RankGroup needs a function that each rank runs, not {function!r}")
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"size must be a whole number of ranks, as in RankGroup(train, 4), not {size!r}")
        if size < 1:
            raise ValueError(f"size must be at least 1 rank, not {size}")
        self.function = function
        self.size = size
        self.args = args
        self.kwargs = kwargs

    @property
    def label(self) -> str:
        return label_of(self.function)

    @property
    def num_replicas(self) -> int | None:
        return self.size

    @property
    def finite(self) -> bool:
        return True

    def arguments(self) -> dict[str, Any]:
        return call_arguments("function", self.function, self.args, self.kwargs)

    def problems(self) -> Iterable[str]:
        reason = misfit(self.function, self.args, self.kwargs)
        if reason:
            yield reason

    def refuses_threads(self) -> str:
        return "each rank needs a process of its own, because torch.distributed keeps one group per process"

    def run(self, context: NodeContext) -> None:
        os.environ.update(context.rendezvous(self.size))
        args, kwargs = context.resolve((self.args, self.kwargs))
        self.function(*args, **kwargs)
