"""`RankGroup`: one function in each of N processes that know each other's addresses, for torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ropewalk.program.node import FunctionNode

if TYPE_CHECKING:
    from ropewalk.program.node_context import NodeContext


class RankGroup(FunctionNode):
    """Runs `function(*args, **kwargs)` in each of `size` processes, with the environment that `torchrun` would set.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT and the other
    variables of `torchrun` are set before the function is called, so `torch.distributed.init_process_group("gloo")`
    needs no address; a `Script` as the function runs as under `torchrun`. The rendezvous is on the first rank's host
    and waits for all ranks; if there are several hosts, they must be able to reach each other. The ranks form a gang:
    when one dies and the restart policy allows it, all restart with a new generation and address.

    Example:
        >>> RankGroup(Script("train_ddp.py", "--epochs", "3"), (2, 4)).num_replicas
        4

    Args:
        function: called in each rank; or a `Script`, which runs as `__main__` there.
        size: number of ranks; or the least and the greatest number, as `(2, 4)`: such a group begins with the ranks
            that have found room, see `ropewalk.program.elastic`, and `RunningProgram.scale` may change it.
        *args: positional arguments of the function; handles among them, at any depth, arrive as clients.
        **kwargs: keyword arguments, likewise.

    Raises:
        TypeError: `function` cannot be called, or `size` is neither a whole number nor two of them.
        ValueError: `size` is below 1, or its bounds are in the wrong order.
    """

    kind: ClassVar[str] = "rank_group"

    def __init__(self, function: Callable[..., Any], size: int | tuple[int, int], *args: Any, **kwargs: Any) -> None:
        if not callable(function):
            raise TypeError(f"RankGroup needs a function that each rank runs, not {function!r}")
        self.function = function
        self.least: int
        self.size: int
        self.least, self.size = _checked_bounds(size)
        self.args = args
        self.kwargs = kwargs

    @property
    def num_replicas(self) -> int | None:
        return self.size

    @property
    def least_replicas(self) -> int | None:
        return None if self.least == self.size else self.least

    def refuses_threads(self) -> str:
        return "each rank needs a process of its own, because torch.distributed keeps one group per process"

    def run(self, context: NodeContext) -> None:
        os.environ.update(context.rendezvous())
        args, kwargs = context.resolve((self.args, self.kwargs))
        self.function(*args, **kwargs)


def _checked_bounds(size: object) -> tuple[int, int]:
    bounds = cast("tuple[object, ...]", size) if isinstance(size, tuple) else (size, size)
    if len(bounds) != 2 or any(isinstance(each, bool) or not isinstance(each, int) for each in bounds):
        raise TypeError(
            f"size must be a whole number of ranks, as in RankGroup(train, 4), or the least and the greatest number, "
            f"as in RankGroup(train, (2, 4)), not {size!r}"
        )
    least, most = cast("tuple[int, int]", bounds)
    if least < 1:
        raise ValueError(f"size must be at least 1 rank, not {least}")
    if most < least:
        raise ValueError(f"size is the least number of ranks and then the greatest, not {least} and then {most}")
    return least, most
