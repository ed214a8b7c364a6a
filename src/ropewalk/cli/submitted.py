"""The first process of a submitted run: it unpacks the code, runs `ropewalk run`, and records how that ended.

    python -m ropewalk.cli.submitted  < one line of JSON (`RunSpec`), then the bundle of code if there is one

It is a process beside the script's, because a script that is killed cannot record its own end, nor start again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NoReturn

import msgspec

from ropewalk.cli.launcher_restarts import LauncherProcess
from ropewalk.cli.submissions import RunEnd, RunProcess, RunSpec, write
from ropewalk.escaping import escaped_lines
from ropewalk.processes.code_bundle import remap, unpack
from ropewalk.processes.left_folders import FolderClaim, sweep
from ropewalk.processes.project_files import MARKERS
from ropewalk.tracking.begun_runs import BEGUN_RUNS
from ropewalk.trusted_files import make_temporary_folder

_ROPEWALK = (
    "import sys; sys.path[:1] = sys.path[:1] if sys.flags.safe_path else [sys.executable.rpartition('/')[0]]; "
    "from ropewalk.cli import main; main()"
)
"""The `ropewalk` command as its script runs it: the first entry of the import path is the folder of that script, which
`run` replaces by the user's. `-m` would import from the current folder first, and `-P` would leave the user's out."""


def main(stdin: BinaryIO) -> int:
    """Run the instructions on the standard input (`RunSpec`); returns the exit code."""
    # Until the launcher runs, and takes this signal too, it has to remove the folder that was made for the code.
    signal.signal(signal.SIGTERM, _end)
    errand = msgspec.json.decode(stdin.readline(), type=RunSpec)
    reason = ""
    try:
        code = _run(errand, stdin)
    except SystemExit as end:
        code = int(str(end.code))
    except OSError as error:  # its working folder is gone, or there is no more memory
        code, reason = 1, f"the launcher cannot be started: {error}"
        with contextlib.suppress(OSError):  # the disk of the output is full
            print(escaped_lines(f"ropewalk: {reason}"), flush=True)
    if errand.state_folder:
        write(Path(errand.state_folder), "ended.json", RunEnd(code, time.time(), reason))
    return code


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # the second one would interrupt the end that the first one asks for
    sys.exit(128 + number)


def _run(errand: RunSpec, stdin: BinaryIO) -> int:
    with _code(errand, stdin) as (here, claims):
        what = ["-m", here.module] if here.module else [str(here.file)]
        ranks = ["--ranks", here.ranks, "--max-restarts", str(here.max_restarts)] if here.ranks else []
        command = [sys.executable, "-c", _ROPEWALK, "run", *ranks, *what, "--", *here.arguments]
        with _memory(errand) as variables:
            launcher = LauncherProcess(command, here.working_folder, errand.launcher_restarts, variables, claims)
            return launcher.run(partial(_note_launcher, errand.state_folder))


def _note_launcher(state_folder: str, pid: int) -> None:
    if state_folder:
        with contextlib.suppress(OSError):  # the disk is full
            write(Path(state_folder), "launcher.json", RunProcess.of(pid))


@contextlib.contextmanager
def _code(errand: RunSpec, stdin: BinaryIO) -> Generator[tuple[RunSpec, Sequence[int]]]:
    """Yield the instructions for this host, with the code of the bundle, if there is one, and what keeps its folder.

    If this process and the launcher are killed, the next process of ours on this host removes the folder: not before
    both have ended, as the launcher goes on when only this process is killed.
    """
    if not errand.root:
        yield errand, ()
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until what removes the folder is entered
    parent = make_temporary_folder("ropewalk-code-")
    claim = FolderClaim(parent)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        sweep([parent.parent])
        root = unpack(stdin.read(), parent)
        if not any((root / marker).exists() for marker in MARKERS):
            (root / "ropewalk.toml").touch()  # .git is not sent, and agents need the same project
        folder = remap(errand.working_folder, errand.root, str(root))
        # On a shared file system the script runs where it was submitted, and its files remain; a module is looked up in
        # the working folder, and has to be the bundle's.
        if os.path.isdir(errand.working_folder) and errand.module is None:
            folder = errand.working_folder
        if not os.path.isdir(folder):
            folder = str(root)
        if Path(folder).is_relative_to(root):
            print(f"ropewalk: it runs in {folder}, which is removed at the end: keep results elsewhere", flush=True)
        file = remap(errand.file, errand.root, str(root)) if errand.file else None
        yield msgspec.structs.replace(errand, file=file, working_folder=folder), claim.descriptors
    finally:
        shutil.rmtree(parent, ignore_errors=True)
        claim.close()


@contextlib.contextmanager
def _memory(errand: RunSpec) -> Generator[dict[str, str]]:
    """Yield the variables by which a launcher that is started again finds the runs that the one before has begun."""
    if not errand.launcher_restarts:
        yield {}
        return
    with contextlib.ExitStack() as stack:
        folder = errand.state_folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="ropewalk-launcher-"))
        yield {BEGUN_RUNS: os.path.join(folder, "begun")}


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer))
