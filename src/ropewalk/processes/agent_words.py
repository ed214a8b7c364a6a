"""What an agent says itself: its standard output, which is the log of its job."""

from __future__ import annotations

import contextlib


def say(text: str) -> None:
    """Print a line, if that is possible: an agent whose log is on a full disk goes on, and ends, all the same."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


__all__ = ["say"]
