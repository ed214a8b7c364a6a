"""`last_line`: the line of an output, or of a traceback, that says what happened."""

from __future__ import annotations

LEARN_MORE = "To learn more: ropewalk explain "
"""How the note begins that is below the message of an error of Ropewalk; the name of the error follows."""


def last_line(text: str) -> str:
    """Return the last line that says something, without the blanks around it; empty if there is none.

    Blank lines are passed over, and so are the notes that name the page of an error.
    """
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next((line for line in lines if line and not line.startswith(LEARN_MORE)), "")


__all__ = ["LEARN_MORE", "last_line"]
