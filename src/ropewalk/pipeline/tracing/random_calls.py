"""Detection of every call that draws random numbers, inside modules and functions, on fake tensors too.

This uses `TorchDispatchMode`, which torch documents (notes/extending) under a path with an underscore; nothing else
sees the calls inside a foreign module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class RandomCalls(TorchDispatchMode):
    """Within the block, reports each random call of this thread before it is made.

    Args:
        tell: called with the first argument, which a call in place writes to, and the generator that the call names.
    """

    supports_higher_order_operators = True
    """Calls with graphs as arguments, such as `torch.cond`, are allowed."""

    def __init__(self, tell: Callable[[Any, torch.Generator | None], object]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._tell = tell

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: otherwise torch imports its compiler at the first call, which takes seconds, to no use."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()) and not _is_switched_off(func, args, kwargs):
            self._tell(args[0] if args else None, kwargs.get("generator"))
        return func(*args, **kwargs)


def _is_switched_off(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a call that could draw random numbers (attention, RReLU) has this switched off."""
    known = func._schema.arguments
    given = {one.name: value for one, value in zip(known, args, strict=False)}
    given = {**{one.name: one.default_value for one in known}, **given, **kwargs}
    return given.get("dropout_p") == 0.0 or given.get("training") is False or given.get("train") is False
