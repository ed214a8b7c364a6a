"""Escaping of text from other processes, so that it cannot control this terminal."""

from __future__ import annotations

import re
from typing import AnyStr, cast

# Characters that move the cursor, control the terminal, or change the direction of text so that a line misleads.
_CONTROLS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
# Characters that show nothing, so that one name looks like another (Unicode Standard, section 5.21, "Default Ignorable
# Code Points"), without those that join or part the letters of some scripts and the pieces of emojis.
_INVISIBLE = (
    "\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U000e0000-\U000e007f"
)
_ACTING = re.compile(f"[{_CONTROLS}{_INVISIBLE}]")
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_RESET = "\x1b[0m"


def escaped(text: str) -> str:
    """Return the text as one line, with control and invisible characters replaced by Python escape sequences."""
    return _ACTING.sub(lambda match: ascii(match[0])[1:-1], text)


def escaped_line(line: str, *, colours: bool) -> str:
    """Escape a line of output, except for its colours.

    Args:
        line: the line. Of a progress bar, which writes over itself from the beginning of the line, the last state is
            shown, as in a terminal.
        colours: keep colour sequences, and reset them at the end of the line; False removes them.
    """
    pieces = _COLOUR.split(last_state(line))
    shown = "".join(
        piece if index % 2 and colours else "" if index % 2 else escaped(piece) for index, piece in enumerate(pieces)
    )
    return shown + _RESET if colours and len(pieces) > 1 else shown


def last_state(line: AnyStr) -> AnyStr:
    """Return what a terminal shows of a line that writes over itself, as that of a progress bar does."""
    turn = cast("AnyStr", b"\r" if isinstance(line, bytes) else "\r")
    return line.removesuffix(turn).rpartition(turn)[2]


def escaped_lines(text: str) -> str:
    """Escape each line of a text of several lines."""
    return "\n".join(map(escaped, text.split("\n")))


def safe_cell(value: object) -> object:
    """Return a cell of CSV that no spreadsheet takes for a formula (OWASP, CSV injection)."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
