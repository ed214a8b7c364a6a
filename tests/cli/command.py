"""The `ropewalk` command in a process of its own, as a user's shell would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.command_server import LIMIT_S, CommandServer

#: While tests of this folder run.
server: CommandServer | None = None


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without settings of Ropewalk, wide enough that messages are not wrapped."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROPEWALK_")}
    kept["XDG_STATE_HOME"] = os.path.join(os.environ["TMPDIR"], "state")  # runs submitted by others are not ours
    return {**kept, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", **changes}


def ropewalk(*arguments: str, folder: Path = Path(), **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, in a fork of the server; `changes` are variables of its environment."""
    if server:
        return server.run(list(arguments), str(folder), environment(**changes))
    return ropewalk_alone(*arguments, folder=folder, **changes)


def ropewalk_alone(*arguments: str, folder: Path = Path(), **changes: str) -> subprocess.CompletedProcess[str]:
    """The same in an interpreter of its own, for what a script sees of its beginning, and what becomes of its end."""
    return subprocess.run(
        [sys.executable, "-m", "ropewalk", *arguments],
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def start_ropewalk(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Start the command; its output is read by the test while it runs."""
    return subprocess.Popen(
        [sys.executable, "-m", "ropewalk", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
