"""What a message says of a name that does not exist: the closest one, and all that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST_SHOWN = 30
"""The number of names that a message lists."""


def instead_of(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name.

    Args:
        name: the unknown name.
        known: the names that exist.

    Example:
        >>> instead_of("lerning_rate", ["learning_rate", "batch"])
        "; did you mean 'learning_rate'? There are learning_rate, batch"
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}? There are" if near else "; there are"
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{hint} {', '.join(names[:_MOST_SHOWN]) or 'none'}{more}"
