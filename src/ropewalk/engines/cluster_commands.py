"""Runs the commands of a batch system: argv lists, a timeout, the C locale, and few of the launcher's variables.

The launcher's environment is not passed on: it may hold secrets, and the variables of a launcher that is itself a job
(`SLURM_*`, `PBS_*`, `LSB_*`) would mislead both the commands and the jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.atomic_files import open_new_file
from ropewalk.errors import EngineError
from ropewalk.surroundings import working_folder

_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG")
_PAUSE_S = 0.5
_MOST_WORDS = 2000


@contextlib.contextmanager
def answer_of(command: str) -> Generator[None]:
    """Read the answer of a command in this block.

    Raises:
        EngineError: the block has raised ValueError, because the answer is not what the command should print.
    """
    try:
        yield
    except ValueError as error:
        raise EngineError(f"{command} gave an answer that is not understood: {error}") from error


@contextlib.contextmanager
def records_of(command: str) -> Generator[None]:
    """Read what a command has printed as JSON in this block.

    Args:
        command: the command with its flags, for the error.

    Raises:
        ValueError: the block has found the text to be something else.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not what {command} prints: {type(error).__name__} {error}") from error


@dataclass(frozen=True, slots=True)
class ClusterCommands:
    """How the commands of one batch system are run, and how their failures are explained."""

    missing: str
    """What to do if a command is not on the PATH."""
    silent: str
    """What to look at if a command does not answer in time."""
    away: str
    """What to look at if the server of the batch system cannot be reached."""
    passing: Sequence[str]
    """Messages, in lower case, of a server that is busy or starting: the same command may succeed later."""
    advice: Sequence[tuple[str, str]]
    """Advice for messages, in lower case, with which the batch system refuses a job."""
    noise: Sequence[str] = ()
    """Words at the beginning of a refusal that say nothing to a user."""
    kept: Sequence[str] = ()
    """Variables of the launcher that the commands, and through them jobs, get beside those of the user."""
    added: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that the commands get in addition."""

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 20.0) -> str:
        """Run one command and return its standard output.

        Raises:
            EngineError: the command is missing, failed, or timed out. The error's `is_passing` says whether a retry may
                help, and `words` is the output of the command.
        """
        try:
            done = _done(argv, stdin, timeout_s, self._environment(os.environ))
        except FileNotFoundError:
            raise EngineError(
                f"there is no {argv[0]} on the PATH; {self.missing}", is_passing=False, words=""
            ) from None
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"{argv[0]} did not answer within {timeout_s:g} s; {self.silent} A busy cluster may "
                f"need a larger option timeout_s",
                is_passing=True,
                words="",
            ) from None
        except (OSError, ValueError) as error:  # ValueError: a null byte in a word
            raise EngineError(f"cannot run {argv[0]}: {error}", is_passing=False, words="") from error
        if done.returncode:
            words = (done.stderr.strip() or done.stdout.strip())[:_MOST_WORDS]
            is_passing = any(word in words.lower() for word in self.passing)
            raise EngineError(
                f"{argv[0]} failed with exit code {done.returncode}: {words or 'it said nothing'}"
                + (f"; {self.away}" if is_passing else ""),
                is_passing=is_passing,
                words=words,
                printed=done.stdout,
            )
        return done.stdout

    def start(self, argv: Sequence[str], said: Path) -> subprocess.Popen[bytes]:
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
                    env=self._environment(os.environ),
                    cwd=working_folder(),
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:  # ValueError: a null byte in a word
            raise EngineError(f"cannot start {argv[0]}: {error}; is it on the PATH?") from error

    def ask(self, argv: Sequence[str], *, timeout_s: float = 20.0) -> str:
        """Run a command that changes nothing, and retry while the server is briefly unreachable.

        Raises:
            EngineError: as `run`, at the latest after about twice `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.run(argv, timeout_s=timeout_s)
            except EngineError as error:
                if not is_passing(error) or time.monotonic() + _PAUSE_S > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def advise(self, words: str) -> str:
        """Return the message with which a job was refused, with advice."""
        for noise in self.noise:
            words = words.replace(noise, "")
        words = words.strip()
        advice = next((advice for cause, advice in self.advice if cause in words.lower()), "")
        return f"{words}; {advice}" if advice else words

    def _environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        kept = {name: environ[name] for name in (*_KEPT, *self.kept) if name in environ}
        return {**kept, "LC_ALL": "C", **self.added}


def _done(
    argv: Sequence[str], stdin: str, timeout_s: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, or end it after the timeout, with all that it started: it may be a wrapper of the site.

    It has a session of its own, because a second Ctrl-C in the terminal must not end the `scancel` that follows the
    first one.
    """
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=working_folder(),
        start_new_session=True,
    ) as process:
        try:
            printed, said = process.communicate(os.fsencode(stdin), timeout_s)
        except BaseException:
            if process.returncode is None:  # not reaped: its number is not reused
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(
        argv, process.returncode, printed.decode(errors="replace"), said.decode(errors="replace")
    )


def is_passing(error: EngineError) -> bool:
    """Return whether the same command may succeed a moment later."""
    return bool(getattr(error, "is_passing", False))


def words_of(error: EngineError) -> str:
    """Return the output of the command itself."""
    return str(getattr(error, "words", ""))


def printed_by(error: EngineError) -> str:
    """Return what a command that failed had printed as its answer: some answer for all jobs but one."""
    return str(getattr(error, "printed", ""))
