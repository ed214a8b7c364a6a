"""The command lines that run modules of our own, on any host, without importing from the folder where they start.

`python -m` looks for modules in the current folder before it looks in Python's library. That is the folder in which the
launcher was started, perhaps one that many users share, where any of them can put a `psutil.py`. `-P` (Python 3.11)
leaves it out. Workers find the modules that the user's own code imports from there by the import path of the launcher,
which they get when they start.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

OUR_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The minor version of this Python; code only travels between equal ones."""
_TELLS = "this interpreter is Python "


def tell_version() -> None:
    """Print the version of this interpreter, for `version_told`, where it cannot import what it needs."""
    print(f"{_TELLS}{OUR_PYTHON}", file=sys.stderr)


def version_told(said: str) -> str:
    """Return the version of an interpreter that has told it in its output; empty if it has not."""
    told = re.search(rf"^{_TELLS}([0-9.]+)$", said, re.MULTILINE)
    return told[1] if told else ""


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package, with assertions and checks on or off as they are here."""
    flags = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    if sys.flags.dev_mode:
        flags += ["-X", "dev"]
    return [python, *flags, "-P", "-m", module, *arguments]


def import_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a new interpreter needs to find this package if it is not installed, and no others.

    Empty entries of PYTHONPATH are left out: Python takes them for the current folder, and they mostly come from
    joining it with another variable that was not set.
    """
    inherited = environ.get("PYTHONPATH", "")
    entries = [os.path.abspath(entry) for entry in inherited.split(os.pathsep) if entry]
    root = str(Path(__file__).resolve().parents[1])
    is_installed = root.endswith("site-packages")
    if not is_installed:
        entries = [root, *(entry for entry in entries if entry != root)]
    path = os.pathsep.join(entries)
    # A process on another host does not inherit what is set here.
    return {} if is_installed and path == inherited else {"PYTHONPATH": path}
