"""Starts a benchmark again with an allocator that keeps its memory.

By default glibc gives memory back to the system and gets it again page by page, at random, which was seen to make the
same stage up to 50 % slower.
"""

from __future__ import annotations

import os
import sys

#: No block below 32 MiB (the most that glibc takes here) is a mapping of its own, and nothing is given back.
VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**26)}


def restart_steady(module: str) -> None:
    """Run `python -m module` in the place of this process, unless it has these variables already."""
    if not VARIABLES.keys() <= os.environ.keys():  # they are read when a process starts
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | VARIABLES)
