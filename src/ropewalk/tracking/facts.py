"""Facts about a run that nobody has to write down: code, packages, command, host, user, Python.

Collecting them never fails a run, takes some tens of milliseconds, and reads no environment variables, which hold
secrets.
"""

from __future__ import annotations

import getpass
import inspect
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_files import boot_id
from ropewalk.process_start import start_ticks
from ropewalk.surroundings import current_folder, working_folder
from ropewalk.tracking.records import OwnerIs
from ropewalk.version import VERSION

_GIT_S = 5.0
"""Seconds within which git must answer; repositories on slow network file systems may take longer."""
_MOST_DIFF_BYTES = _MOST_SCRIPT_BYTES = 1 << 20
_INSTALLED = re.compile(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")


def this_process() -> OwnerIs:
    """Return what identifies this process, also after its process id was given to another one."""
    return OwnerIs(platform.node(), os.getpid(), start_ticks(os.getpid()), boot_id())


def collect(seed: int | None = None, script: Path | None = None) -> dict[str, Any]:
    """Return the facts about this process and its code, as JSON can represent them.

    Args:
        seed: the seed of the run, if it has one.
        script: the file of the code that is run; None: the script of this process.
    """
    script = script or script_path()
    return {
        "argv": command_line(),
        "cwd": current_folder(),
        "script": str(script) if script else "",
        "is_notebook": is_notebook(),
        "host": platform.node(),
        "user": _user(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "ropewalk": VERSION,
        "packages": installed_packages(sys.path),
        "git": git_facts(script.parent if script else Path(working_folder())),
        "seed": seed,
    }


def command_line() -> list[str]:
    """Return the command that started this process, with the path of its interpreter."""
    return [sys.executable, *sys.orig_argv[1:]]


def script_path() -> Path | None:
    """Return the path of the script that runs; None in a notebook, an interactive interpreter, or for `python -c`."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).absolute() if main and not is_notebook() else None


def file_of(function: Callable[..., Any]) -> Path | None:
    """Return the path of the file that defines a function; None if there is none, as in a notebook."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # an object that can be called
        return None
    path = Path(file).absolute() if file else None
    return path if path and path.is_file() else None


def code_to_copy(known: Mapping[str, Any]) -> Path | None:
    """Return the script, if a copy in the run would be the only one that is kept of the code, and it is no large file.

    Args:
        known: what `collect` returned.
    """
    script = Path(known["script"]) if known["script"] and not known["git"] else None
    return script if script and script.is_file() and script.stat().st_size <= _MOST_SCRIPT_BYTES else None


def is_notebook() -> bool:
    """Whether this is the kernel of a notebook, or an interactive IPython."""
    return "ipykernel" in sys.modules or hasattr(sys.modules.get("builtins"), "__IPYTHON__")


def installed_packages(path: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages by name, without reading their metadata.

    Args:
        path: folders, as in `sys.path`.
    """
    found: dict[str, str] = {}
    for folder in path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for match in filter(None, map(_INSTALLED.fullmatch, names)):
            found.setdefault(match[1].replace("_", "-").lower(), match[2])
    return dict(sorted(found.items()))


def git_facts(folder: Path) -> dict[str, Any]:
    """Return commit, branch, root and uncommitted changes of a working copy; empty if there is none, or no git.

    Args:
        folder: a folder of it.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
    untracked = _git(folder, "ls-files", "--others", "--exclude-standard", "--full-name")
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "root": _git(folder, "rev-parse", "--show-toplevel"),
        "diff": diff,
        "is_diff_complete": len(diff) < _MOST_DIFF_BYTES,
        "untracked": untracked.splitlines()[:1000],
    }


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git up to a bound; empty if it fails, or does not answer in time."""
    command = ["git", "-C", str(folder), *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    except OSError:
        return ""
    limit = threading.Timer(_GIT_S, process.kill)
    limit.daemon = True
    limit.start()
    try:
        assert process.stdout is not None
        output = process.stdout.read(_MOST_DIFF_BYTES)
        is_cut = len(output) == _MOST_DIFF_BYTES
        if is_cut:  # the rest would fill the pipe
            process.kill()
        process.stdout.close()
        code = process.wait()
    finally:
        limit.cancel()
    return output.decode(errors="replace").rstrip("\n") if code == 0 or is_cut else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run with an id that has no name
        return str(os.getuid())


__all__ = [
    "code_to_copy",
    "collect",
    "command_line",
    "file_of",
    "git_facts",
    "installed_packages",
    "is_notebook",
    "script_path",
    "this_process",
]
