"""What a launcher adds to the files that hold the output of processes: what it knows of one that has ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ropewalk.escaping import escaped
from ropewalk.trusted_files import open_to_append

LIFE_MARK = "--- ropewalk: "
"""The beginning of the line between the output of a process and that of its successor of the same name."""


def append_to(path: Path | None, text: str) -> None:
    """Add complete lines to the output of a process that has ended, if there is a file; ignores a full disk."""
    with contextlib.suppress(OSError):
        if path is not None and os.path.lexists(path):
            with open(open_to_append(path), "ab", buffering=0) as file:
                file.write(text.encode(errors="replace"))


def mark_end(path: Path | None, why: str) -> None:
    """Separate the output of a process that has ended from that of its successor.

    Args:
        path: of the file; None, or a file that does not exist: there is nothing to separate.
        why: how it has ended.
    """
    append_to(path, f"{LIFE_MARK}{escaped(' '.join(why.split()))} ---\n")


__all__ = ["LIFE_MARK", "append_to", "mark_end"]
