"""Text that another process chose, made harmless for this terminal."""

from __future__ import annotations

import re

# What moves the cursor, changes the terminal, or turns the direction of writing, so that a line reads otherwise.
_ACTING = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_RESET = "\x1b[0m"


def escaped(text: str) -> str:
    """The text in one line, with characters that would act on a terminal shown as Python writes them."""
    return _ACTING.sub(lambda match: repr(match[0])[1:-1], text)


def escaped_line(line: str, *, colours: bool) -> str:
    """A line of output: what acts is shown, except colours, which are kept (and ended with the line) or left out."""
    pieces = _COLOUR.split(line.removesuffix("\r"))
    shown = "".join(
        piece if index % 2 and colours else "" if index % 2 else escaped(piece) for index, piece in enumerate(pieces)
    )
    return shown + _RESET if colours and len(pieces) > 1 else shown


def escaped_lines(text: str) -> str:
    """A text of several lines, each of them escaped."""
    return "\n".join(map(escaped, text.split("\n")))
