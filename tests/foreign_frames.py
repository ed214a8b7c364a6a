"""`foreign_frames`: the lines of a printed exception that show frames inside Ropewalk and torch."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import torch

import ropewalk

_FOLDERS = tuple(str(Path(str(package.__file__)).parent) for package in (ropewalk, torch))


def foreign_frames(error: BaseException) -> list[str]:
    """Return the lines of frames that are not the user's, as Python prints the exception with those that led to it."""
    text = "".join(traceback.format_exception(error))
    return [file for file in re.findall(r'^ *File "(.+)", line \d+', text, re.MULTILINE) if file.startswith(_FOLDERS)]
