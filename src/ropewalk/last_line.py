"""`last_line`: the line of an output, or of a traceback, that says what happened."""

from __future__ import annotations


def last_line(text: str) -> str:
    """Return the last line of a text that is not blank, without the blanks around it; empty if there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


__all__ = ["last_line"]
