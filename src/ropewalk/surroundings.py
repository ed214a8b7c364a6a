"""Which engine is meant when nobody names one: that of the allocation or the cluster in which this process runs.

Inside a Slurm allocation it is "slurm", inside a pod of Kubernetes whose account may talk to the cluster "kubernetes",
and "local" everywhere else. Processes that Ropewalk itself has started do not look around: their place was chosen by
whoever launched them, and a script that one of them starts must not take a second allocation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

#: A variable that every process of a run inherits.
_STARTED_BY_US = "ROPEWALK_RUN_ID"
#: Where Kubernetes puts the account of a pod; missing if the pod was made with automountServiceAccountToken: false.
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def engine_here(environ: Mapping[str, str], account: Path = _ACCOUNT) -> tuple[str, str]:
    """Name the engine to use when none is named, and say why.

    Args:
        environ: the environment of this process.
        account: the file with the token of a pod's service account.

    Returns:
        The engine, and the origin of that choice as `Settings.origin` tells it: "default" for the local engine.
    """
    if environ.get(_STARTED_BY_US):
        return "local", "default"
    job = environ.get("SLURM_JOB_ID")
    if job and shutil.which("sbatch", path=environ.get("PATH")):
        return "slurm", f"surroundings: inside the Slurm allocation {job}"
    # The token of a service account may be one that only others in the pod can read.
    if environ.get("KUBERNETES_SERVICE_HOST") and os.access(account, os.R_OK):
        return "kubernetes", "surroundings: inside a pod with a service account"
    return "local", "default"
