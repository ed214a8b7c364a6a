"""`ProgressStream`: the progress of a run on standard error: a picture in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

_PER_SECOND = 8
"""How many times a second a picture that has changed is drawn."""


class ProgressStream:
    """Standard error, for one run, in a `with` block.

    Args:
        shown: False shows nothing.
    """

    def __init__(self, shown: bool | None) -> None:
        self.is_shown = shown is not False
        self.is_terminal = sys.stderr.isatty()
        self._live: Any = None

    def __enter__(self) -> Self:
        if self.is_shown and self.is_terminal:
            from rich.console import Console  # without a terminal, it is not needed
            from rich.live import Live

            self._live = Live("", console=Console(stderr=True, highlight=False), refresh_per_second=_PER_SECOND)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, traceback)
            self._live = None

    @property
    def has_picture(self) -> bool:
        """Whether `draw` shows something: in a terminal, within the block."""
        return self._live is not None

    def draw(self, picture: Any) -> None:
        """Replace the picture by another object of rich, or by a text."""
        from rich.text import Text  # a text as it is: rich would read brackets in it as markup

        self._live.update(Text(picture) if isinstance(picture, str) else picture)

    def line(self, text: str) -> None:
        """Print a line, above the picture if there is one."""
        if not self.is_shown:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)


__all__ = ["ProgressStream"]
