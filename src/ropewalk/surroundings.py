"""What surrounds this process: its folder, its import path, and the allocation or cluster in which it runs.

Inside a Slurm allocation the default engine is "slurm", inside a Kubernetes pod whose account may access the cluster
"kubernetes", and "local" everywhere else. Processes that Ropewalk itself has started always get "local": their
launcher chose where they run, and a script that one of them starts must not request a second allocation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_STARTED_BY_US = "ROPEWALK_RUN_ID"
"""A variable that every process of a run inherits."""
DOOR_VARIABLE = "ROPEWALK_DOOR"
"""The variable with the path of the socket at which the agent of a job listens, where the engine leads to it."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""Where Kubernetes mounts the token of a pod's account; missing in a pod with automountServiceAccountToken: false."""


def engine_here(environ: Mapping[str, str], account: Path = _ACCOUNT) -> tuple[str, str]:
    """Choose the engine to use when none is named, and give the reason.

    Args:
        environ: the environment of this process.
        account: the file with the token of a pod's service account.

    Returns:
        The engine, and the origin of that choice as `Settings.origin` returns it: "default" for the local engine.
    """
    if environ.get(_STARTED_BY_US):
        return "local", "default"
    job = environ.get("SLURM_JOB_ID")
    if job:
        import shutil  # takes 2 ms, for which a first process would wait

        if shutil.which("sbatch", path=environ.get("PATH")):
            return "slurm", f"surroundings: inside the Slurm allocation {job}"
    # The token of a service account may be readable only for other users in the pod.
    if environ.get("KUBERNETES_SERVICE_HOST") and os.access(account, os.R_OK):
        return "kubernetes", "surroundings: inside a pod with a service account"
    return "local", "default"


def current_folder() -> str:
    """Return the current folder; empty if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def working_folder() -> str:
    """Return the folder in which to start processes: the current one, or the root if that was removed."""
    return current_folder() or "/"


def sendable(text: str) -> str:
    """Return a path, argument or variable of this process in a form that messages can carry.

    Those are bytes to the kernel. Python shows bytes that are no UTF-8, such as a folder named in Latin-1, by
    characters that UTF-8 lacks. A NUL, which none of them can contain, marks a text that stands for such bytes.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return "\0" + os.fsencode(text).decode("latin-1")
    return str.__str__(text)  # under pdb, `__file__` is of a subclass, which no message can carry


def as_sent(text: str) -> str:
    """Return the text from which `sendable` made this one."""
    return os.fsdecode(text[1:].encode("latin-1")) if text.startswith("\0") else text


def import_path() -> tuple[str, ...]:
    """Return `sys.path` with the current folder by its name, or without it if it was removed."""
    here = current_folder()
    return tuple(path or here for path in sys.path if path or here)
