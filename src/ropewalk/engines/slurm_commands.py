"""Runs the commands of Slurm: argv lists, a timeout, the C locale, and few of the launcher's variables.

The launcher's environment is not passed on: it may hold secrets, and the `SLURM_*` variables of a launcher inside an
allocation would mislead both the commands and the jobs.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ropewalk.atomic_files import open_new_file
from ropewalk.errors import EngineError

_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
"""The variables of the launcher that commands, and through `sbatch --export=ALL` jobs, get."""
_PASSING = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection reset",
    "connection timed out",
    "zero bytes were transmitted",
    "insane message length",
    "transport endpoint is not connected",
    "resource temporarily unavailable",
    "temporarily unable to accept job",
    "in standby mode",
    "invalid protocol version: uninitialized",
)
"""Messages of a controller that is busy, starting, or briefly unreachable: the same command may succeed later."""
_ADVICE = (
    ("invalid account", "choose an account of yours with the option account (sacctmgr show associations lists them)"),
    ("invalid partition", "choose a partition with the option partition (sinfo lists them)"),
    ("invalid qos", "choose a quality of service with the option qos (sacctmgr show qos lists them)"),
    ("invalid feature", "choose features with the option constraint (sinfo --format=%f lists them)"),
    ("reservation", "choose a reservation with the option reservation (scontrol show reservation lists them)"),
    ("submit limit", "you have as many jobs in the queue as you may; wait for some, or ask for fewer processes"),
    ("policy", "a limit of the account is reached; ask for less, or wait for your other jobs"),
    ("array", "the cluster allows smaller arrays only (MaxArraySize); ask for fewer jobs at once"),
    ("memory", "ask for less memory, or choose a partition with larger nodes"),
    ("node configuration", "no node has what is asked for; compare it with sinfo --Node --long"),
    ("group not permitted", "you may not use this partition; choose another with the option partition"),
)
"""Advice for the messages with which sbatch refuses a job."""
_PAUSE_S = 0.5
_MOST_WORDS = 2000


def run_command(argv: Sequence[str], *, stdin: str = "", timeout_s: float = 20.0) -> str:
    """Run one command and return its standard output.

    Raises:
        EngineError: the command is missing, failed, or timed out. The error's `is_passing` says whether a retry may
            help, and `words` is the output of the command.
    """
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=_environment(os.environ),
            cwd=_folder(),
        )
    except FileNotFoundError:
        raise EngineError(
            f"there is no {argv[0]} on the PATH; run the launcher where Slurm's commands are (a login node, or inside "
            f"of a job), load their module, or install them (Debian: apt install slurm-client)",
            is_passing=False,
            words="",
        ) from None
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"{argv[0]} did not answer within {timeout_s:g} s; is slurmctld up (scontrol ping)? A busy cluster may "
            f"need a larger option timeout_s",
            is_passing=True,
            words="",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in a word
        raise EngineError(f"cannot run {argv[0]}: {error}", is_passing=False, words="") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[:_MOST_WORDS]
        is_passing = any(word in words.lower() for word in _PASSING)
        advice = "; slurmctld does not answer, scontrol ping tells more" if is_passing else ""
        raise EngineError(
            f"{argv[0]} failed with exit code {done.returncode}: {words or 'it said nothing'}{advice}",
            is_passing=is_passing,
            words=words,
        )
    return done.stdout


def start_command(argv: Sequence[str], said: Path) -> subprocess.Popen[bytes]:
    """Start a long-running command, which may outlive this process; its output is written to a new file.

    Raises:
        EngineError: the command cannot be started.
    """
    try:
        with open_new_file(said) as output:
            # In a session of its own: Ctrl-C is for the launcher, which then ends its jobs by itself.
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(os.environ),
                cwd=_folder(),
                start_new_session=True,
            )
    except (OSError, ValueError) as error:  # ValueError: a null byte in a word
        raise EngineError(f"cannot start {argv[0]}: {error}; is it on the PATH?") from error


def ask(argv: Sequence[str], *, timeout_s: float = 20.0) -> str:
    """Run a command that changes nothing, and retry while the controller is briefly unreachable.

    Raises:
        EngineError: as `run_command`, at the latest after about twice `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return run_command(argv, timeout_s=timeout_s)
        except EngineError as error:
            if not is_passing(error) or time.monotonic() + _PAUSE_S > deadline:
                raise
        time.sleep(_PAUSE_S)


def is_passing(error: EngineError) -> bool:
    """Return whether the same command may succeed a moment later."""
    return bool(getattr(error, "is_passing", False))


def words_of(error: EngineError) -> str:
    """Return the output of the command itself."""
    return str(getattr(error, "words", ""))


def advise(words: str) -> str:
    """Return the message with which sbatch refused a job, with advice."""
    words = words.replace("sbatch: error: ", "").replace("Batch job submission failed: ", "").strip()
    advice = next((advice for cause, advice in _ADVICE if cause in words.lower()), "")
    return f"{words}; {advice}" if advice else words


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: environ[name] for name in _KEPT if name in environ}
    # Long lists of array tasks are cut by default.
    return kept | {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0"}


def _folder() -> str:
    """Return the folder in which jobs start: the launcher's own, as users of sbatch expect."""
    try:
        return os.getcwd()
    except FileNotFoundError:  # the current folder was removed
        return str(Path("/"))
