"""Shows the doctests in docstrings as code: their heading is "Example:" here, and Griffe knows "Examples:" alone."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension


class Doctests(Extension):
    """Renames the heading of a section that is a doctest."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called by Griffe for everything that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$(?=\s+>>>)", "Examples:", obj.docstring.value, flags=re.MULTILINE)
