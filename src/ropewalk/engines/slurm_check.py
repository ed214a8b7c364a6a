"""Checks whether Slurm can be used here, for `ropewalk doctor --engine slurm`."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from ropewalk.engines.batch_sizes import describe
from ropewalk.engines.cluster_commands import words_of
from ropewalk.engines.engine import EngineFinding
from ropewalk.engines.shared_folder import SharedFolder
from ropewalk.engines.slurm_commands import run_command
from ropewalk.engines.slurm_nodes import SlurmNode
from ropewalk.engines.slurm_script import SlurmOptions
from ropewalk.errors import EngineError

_COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")
_MOST_SKEW_S = 60.0
"""Credentials of Slurm (munge) are invalid between clocks that differ by more than five minutes."""


def check_cluster(
    options: SlurmOptions, folder: SharedFolder, nodes: Callable[[], list[SlurmNode]]
) -> list[EngineFinding]:
    """Return all findings; `nodes` returns the nodes that the options allow, or raises an EngineError."""
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    if missing:
        advice = (
            f"not on the PATH: {', '.join(missing)}. Run the launcher on a login node of the cluster or inside a job, "
            "load Slurm's module, or install the commands (Debian: apt install slurm-client)"
        )
        return [EngineFinding("commands of Slurm", False, advice), folder.check()]
    findings = [EngineFinding("commands of Slurm", True, os.path.dirname(shutil.which("sbatch") or ""))]
    for probe in (_version, _controller, _clock, _queue):
        findings.append(probe(options.timeout_s))
    findings += _partition(nodes)
    findings.append(_accounts(options.timeout_s))
    return [*findings, folder.check()]


def _said(argv: Sequence[str], timeout_s: float) -> tuple[bool, str]:
    try:
        return True, run_command(argv, timeout_s=timeout_s).strip()
    except EngineError as error:
        return False, words_of(error) or str(error)


def _version(timeout_s: float) -> EngineFinding:
    ok, words = _said(["sbatch", "--version"], timeout_s)
    return EngineFinding(
        "version of Slurm", ok, words if ok else f"{words}; is SLURM_CONF set, if this cluster needs it?"
    )


def _controller(timeout_s: float) -> EngineFinding:
    ok, words = _said(["scontrol", "ping"], timeout_s)
    is_up = ok and re.search(r"\bUP\b", words) is not None
    advice = "slurmctld must run and be reachable from here, on the port SlurmctldPort of slurm.conf"
    return EngineFinding("controller", is_up, words if is_up else f"{words or 'no answer'}; {advice}")


def _clock(timeout_s: float) -> EngineFinding:
    ok, words = _said(["scontrol", "show", "config"], timeout_s)
    match = re.search(r"as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", words)
    if not ok or not match:
        return EngineFinding("clock", ok, "the controller does not report its time" if ok else words)
    skew_s = datetime.fromisoformat(match[1]).timestamp() - time.time()
    if abs(skew_s) <= _MOST_SKEW_S:
        return EngineFinding("clock", True, f"{abs(skew_s):.0f} s from the controller's")
    advice = "Slurm's credentials and our certificates need clocks that agree: use chrony or ntpd on both"
    return EngineFinding("clock", False, f"{skew_s:+.0f} s from the controller's; {advice}")


def _queue(timeout_s: float) -> EngineFinding:
    ok, words = _said(["squeue", "--noheader", "--user", str(os.getuid())], timeout_s)
    advice = "munge must run here with the cluster's key (munge -n | unmunge)"
    return EngineFinding("own jobs", ok, f"{len(words.splitlines())} in the queue" if ok else f"{words}; {advice}")


def _partition(nodes: Callable[[], list[SlurmNode]]) -> Iterator[EngineFinding]:
    try:
        found = nodes()
    except EngineError as error:
        yield EngineFinding("partition", False, str(error))
        return
    names = ", ".join(sorted({node.partition for node in found}))
    usable = [node for node in found if node.is_usable]
    yield EngineFinding("partition", True, f"{names}: {len(found)} nodes, with up to {describe(found)}")
    closed = "" if any(node.is_open for node in found) else " (the partition is closed)"
    advice = "" if usable else f"{closed}: jobs will wait until there are some; sinfo --list-reasons says why"
    yield EngineFinding("usable nodes", bool(usable), f"{len(usable)} of {len(found)}{advice}")


def _accounts(timeout_s: float) -> EngineFinding:
    if shutil.which("sacct") is None or not _said(["sacct", "--noheader", "--format=JobID"], timeout_s)[0]:
        return EngineFinding(
            "accounts of jobs", True, "none kept here; the end of a job is known for MinJobAge seconds only"
        )
    return EngineFinding("accounts of jobs", True, "kept, sacct answers")
