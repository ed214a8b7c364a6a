"""One rank of an mpiexec: takes its own files from the shared folder, runs the job, and records how it ended.

    mpiexec ─┬─ rank 0: this program ── the job 0      0.stdin  credentials, removed when opened
             └─ rank 1: this program ── the job 1      1.log    output
                                                       1.end    exit code, when it has ended
                                                       1.cancel asks for its end

mpiexec passes its standard input to rank 0 only and mixes all outputs, hence the files. A rank that exits with an error
makes mpiexec end all others, so this program always exits with 0, and writes its job's exit code to a file.

The folder may lie in one of a project, where other members may rename what they cannot change, and put another folder
in its place. So the command line has the digest of `job.json`, and that file the digest of the credentials: nothing
else is run, and no other launcher joined.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_files import replace_file
from ropewalk.descendants import descendants, kill

_RANK_VARIABLES = (
    "PMI_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
)
"""In order of precedence: MPICH and Intel, Open MPI, MVAPICH, PMIx, srun."""
_NOT_FOR_JOBS = re.compile(r"(PMI|PMIX|OMPI|HYDI|HYDRA|MPI|MV2)_|SLURM_JWT$")
"""Variables that mark a program as a rank, which the job is not, and the token with which a launcher asks Slurm."""
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK_S = 0.1
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36


class NotOurs(Exception):
    """A file is not what the launcher has written."""


def main(digest: str, folder: Path) -> int:
    """Run the job of this rank and return 0; another number only if there is no such job.

    Args:
        digest: SHA-256 of the file `job.json`.
        folder: of the files.
    """
    rank = rank_of(os.environ)
    if rank is None:
        print(f"none of {', '.join(_RANK_VARIABLES)} is set: this is for mpiexec to start", file=sys.stderr)
        return 1
    try:
        try:
            facts = json.loads(_checked((folder / "job.json").read_bytes(), digest, "job.json"))
            output = os.open(folder / f"{rank}.log", _APPEND, 0o600)  # the job's, for as long as it lives
        except OSError as error:
            print(f"rank {rank} cannot read its files in {folder}: {error}. All hosts must share it", file=sys.stderr)
            return 1
        code = _run(facts, folder, rank, output)
    except NotOurs as error:
        print(
            f"rank {rank} runs nothing: {error} in {folder} is not what the launcher has written, so another user has "
            "put a folder in its place; set the option folder to one that nobody else may rename",
            file=sys.stderr,
        )
        return 1
    _say_end(folder, rank, code)
    return 0


def _checked(data: bytes, digest: str, name: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != digest:
        raise NotOurs(name)
    return data


def rank_of(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this process; None if no mpiexec started it."""
    for name in _RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return None


def _run(facts: Mapping[str, Any], folder: Path, rank: int, output: int) -> int:
    command: list[str] = facts["command"]
    parent = os.getppid()
    environment = {name: value for name, value in os.environ.items() if not _NOT_FOR_JOBS.match(name)}
    try:
        stdin = _open_stdin(folder / f"{rank}.stdin", facts["stdin"])
        job = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=environment | facts["environment"],
            start_new_session=True,
            preexec_fn=_end_with_rank,  # we have one thread
        )
    except (OSError, ValueError) as error:
        os.write(output, f"cannot start {command[0]}: {error}\n".encode())
        return 127
    os.close(stdin)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, lambda number, _frame: _pass_on(job, number))
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_LOOK_S)
            break
        # The parent is mpiexec, or its proxy on this host: when it is gone, this process has to end the job.
        if os.path.lexists(folder / f"{rank}.cancel") or _was_removed(folder) or os.getppid() != parent:
            kill(descendants(os.getpid()))  # orphans have become children of this process
    kill(descendants(os.getpid()))
    return job.returncode


def _was_removed(folder: Path) -> bool:
    """Return whether a folder is gone; one on a network drive that gives an error for a while is not."""
    try:
        os.stat(folder)
    except FileNotFoundError:
        return True
    except OSError:  # a stale handle, a server that is restarted
        return False
    return False


def _open_stdin(path: Path, digest: str) -> int:
    """Open the credentials of the job, which has none if there is no digest of them."""
    if not digest:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    path.unlink()
    with open(os.dup(descriptor), "rb") as file:
        _checked(file.read(), digest, path.name)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _pass_on(job: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        job.send_signal(number)


def _say_end(folder: Path, rank: int, code: int) -> None:
    """Write the exit code, atomically."""
    with contextlib.suppress(OSError):  # the folder was removed: the exit code is not wanted any more
        replace_file(folder / f"{rank}.end", [str(code).encode()])


def _end_with_rank() -> None:
    """Have the job end with this process, which the proxy of mpiexec kills when mpiexec is gone."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


if __name__ == "__main__":
    _adopt_orphans()
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
