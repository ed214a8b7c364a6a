"""`DescribedByArguments`: shows an object as the call that makes it, all arguments included: `ASHA(R=27, r=1, ...)`."""

from __future__ import annotations

import inspect
from typing import Any, Self


class DescribedByArguments:
    """What decides in a search. Its description is kept with the search, which goes on only with the same one."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Note the arguments; a copy, which is made without any, gets those of the original with its attributes."""
        made = super().__new__(cls)
        made._made_with = (arguments, named)
        return made

    def __repr__(self) -> str:
        kind = type(self)
        arguments, named = self._made_with
        if kind.__init__ is object.__init__:
            return f"{kind.__qualname__}()"
        bound = inspect.signature(kind.__init__).bind(self, *arguments, **named)
        bound.apply_defaults()
        given = [f"{name}={value!r}" for name, value in list(bound.arguments.items())[1:]]
        return f"{kind.__qualname__}({', '.join(given)})"


__all__ = ["DescribedByArguments"]
