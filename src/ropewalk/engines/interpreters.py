"""The command lines that run modules of our own, on any host: nothing in the folder where they start is imported.

`python -m` looks for modules in the current folder before it looks in Python's library. That folder is whichever the
launcher was started in, such as one that many users share, where anybody can put a `psutil.py`. `-P` (Python 3.11)
leaves it away. What the user's own code imports from there, workers find by the import path of the launcher, which
they get when they start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package."""
    return [python, "-P", "-m", module, *arguments]


def import_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What has to be set for a fresh interpreter to find this package, where it is not installed for it, and no more.

    Of PYTHONPATH, empty entries are left out: Python takes them for the current folder, and they mostly come from
    joining it with another that was not set.
    """
    inherited = environ.get("PYTHONPATH", "")
    entries = [os.path.abspath(entry) for entry in inherited.split(os.pathsep) if entry]
    root = str(Path(__file__).resolve().parents[2])
    if not root.endswith("site-packages"):
        entries = [root, *(entry for entry in entries if entry != root)]
    path = os.pathsep.join(entries)
    return {"PYTHONPATH": path} if path != inherited else {}
