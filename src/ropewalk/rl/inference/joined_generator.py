"""`JoinedGenerator`: draws for the rows of several callers, each from the caller's own generator.

A policy that acts for the joined rows of several groups draws once, for all rows. Each row gets the number that it
would get if its group were alone, since rows are what the first axis of a draw is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_SIZE_AT = {
    "random": 0,
    "standard_normal": 0,
    "standard_exponential": 0,
    "exponential": 1,
    "integers": 2,
    "uniform": 2,
    "normal": 2,
    "gumbel": 2,
}
"""Methods that draw for rows, and which of their arguments is the size."""


_UNUSED = np.random.PCG64(0)
"""What numpy's class wants to have; nothing is drawn from it."""


class JoinedGenerator(np.random.Generator):
    """Draws arrays whose first axis are the rows of all parts. A single number is drawn by each; the first one counts.

    Args:
        parts: the generator of each part, and how many rows it has.
    """

    def __init__(self, parts: Sequence[tuple[np.random.Generator, int]]) -> None:
        super().__init__(_UNUSED)
        self._parts = parts
        self._num_rows = sum(num for _, num in parts)

    def _drawn(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at = _SIZE_AT[name]
        size: int | Sequence[int] | None = args[at] if len(args) > at else kwargs.get("size")
        if size is None:
            numbers = [getattr(generator, name)(*args, **kwargs) for generator, _ in self._parts]
            return numbers[0]
        shape = tuple(size) if isinstance(size, Sequence) else (int(size),)
        if not shape or shape[0] != self._num_rows:
            raise ValueError(
                f"a policy at an inference server drew an array of shape {shape} for {self._num_rows} rows; the first "
                "axis of what it draws has to be the rows, or groups cannot have their own random numbers"
            )
        rest = shape[1:]
        if len(args) > at:
            before, after = args[:at], args[at + 1 :]
            drawn = [getattr(rng, name)(*before, (num, *rest), *after, **kwargs) for rng, num in self._parts]
        else:
            drawn = [getattr(rng, name)(*args, **(kwargs | {"size": (num, *rest)})) for rng, num in self._parts]
        return np.concatenate(drawn)


def _drawing(name: str) -> Callable[..., Any]:
    def draw(self: JoinedGenerator, *args: Any, **kwargs: Any) -> Any:
        return self._drawn(name, args, kwargs)  # pyright: ignore[reportPrivateUsage]

    return draw


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: JoinedGenerator, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"a policy at an inference server draws by {', '.join(_SIZE_AT)}, whose numbers can be divided among the "
            f"callers, and not by {name}; use one of those, or InferenceServer(..., exact=True)"
        )

    return refuse


for _name in dir(np.random.Generator):
    if not _name.startswith("_") and callable(getattr(np.random.Generator, _name)):
        setattr(JoinedGenerator, _name, _drawing(_name) if _name in _SIZE_AT else _refusing(_name))

__all__ = ["JoinedGenerator"]
