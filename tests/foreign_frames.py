"""`foreign_frames`: the lines of a printed exception that show frames inside Ropewalk and torch."""

from __future__ import annotations

import importlib.util
import re
import traceback

#: Where they are, without an import: processes that are forked from one with a test's module need no torch for this.
_FOLDERS = tuple(
    folder
    for package in ("ropewalk", "torch")
    if (spec := importlib.util.find_spec(package))
    for folder in spec.submodule_search_locations or ()
)


def foreign_frames(error: BaseException) -> list[str]:
    """Return the lines of frames that are not the user's, as Python prints the exception with those that led to it."""
    text = "".join(traceback.format_exception(error))
    return [file for file in re.findall(r'^ *File "(.+)", line \d+', text, re.MULTILINE) if file.startswith(_FOLDERS)]
