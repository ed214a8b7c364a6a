"""`ProgressStream`: the progress of a run on standard error: a picture in a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import Any, Self

_PER_SECOND = 8
"""How many times a second a picture that has changed is drawn."""


class ProgressStream:
    """Standard error, for one run, in a `with` block.

    What cannot be written is left out: the terminal of a run of days may be gone before the run ends.

    Args:
        shown: False shows nothing.
    """

    def __init__(self, shown: bool | None) -> None:
        self.is_shown = shown is not False and sys.stderr is not None  # as in a daemon that has closed it
        self.is_terminal = is_terminal(sys.stderr)
        self._stream: Any = _Forgiving(sys.stderr)
        self._live: Any = None

    def __enter__(self) -> Self:
        if self.is_shown and self.is_terminal:
            from rich.console import Console  # without a terminal, it is not needed
            from rich.live import Live

            self._live = Live("", console=Console(file=self._stream, highlight=False), refresh_per_second=_PER_SECOND)
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
            print(text, file=self._stream, flush=True)


class _Forgiving:
    """A stream whose `write` and `flush` do nothing if they cannot, as when its terminal is gone or its disk full."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def is_terminal(stream: object) -> bool:
    """Say whether a stream is a terminal.

    It may be None, as `sys.stderr` of some daemons is, or an object without `isatty`, with which a script copies its
    output to a file.
    """
    with contextlib.suppress(AttributeError, ValueError):
        return bool(stream.isatty())  # type: ignore[attr-defined]
    return False


__all__ = ["ProgressStream", "is_terminal"]
