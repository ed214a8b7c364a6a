"""An engine under test: how it is made, how its jobs are lost, and which of their processes are visible here."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine, JobSpec, JobState, JobStatus
from ropewalk.testing.conformance_suite import ConformanceSuite

OVER = (JobState.ENDED, JobState.LOST)
_IF_IT_HANGS = (
    "if it waits for a command that reads the standard input, give the command none (stdin=subprocess.DEVNULL); if it "
    "writes to a job that does not read, write in a thread of its own; if the cluster takes longer, raise call_s"
)
_LAUNCHER = """
import json, os, signal, sys, time
from ropewalk.engines import make_engine
from ropewalk.engines.engine import JobSpec, JobState
asked = json.loads(sys.stdin.readline())
engine = make_engine(asked["name"], asked["options"])
ids = engine.submit(JobSpec(command=asked["command"], name="ropewalk-conformance"), 2, asked["run"], "a")
while not all("up" in engine.logs(id) for id in ids):
    if ended := [status for status in engine.poll(ids).values() if status.state in (JobState.ENDED, JobState.LOST)]:
        sys.exit(f"jobs ended that should run for minutes: {ended}")
    time.sleep(0.05)
print(json.dumps(ids), flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Reads how to make an engine and what to submit, prints the ids of its jobs, and kills itself when it is told to."""


class EngineUnderTest(ConformanceSuite):
    """The settings of `EngineConformance` for an engine; a subclass overrides those that differ."""

    engine_name: str = ""
    """The name of the engine in `ropewalk.engines.ENGINES` or in an entry point."""
    python: str = sys.executable
    """A Python interpreter on the engine's hosts."""
    patience_s: float = 30.0
    """The timeout for starting or ending a job, in seconds."""
    call_s: float | None = None
    """The timeout for one call of the engine, in seconds; four times `patience_s` if None."""
    lost_s: float | None = None
    """Seconds that the engine may take to report a lost job; `patience_s` if None."""
    time_limit_s: float | None = None
    """A time limit that the engine can enforce; None skips that test."""
    num_jobs: int = 40
    """The number of jobs that `test_many_jobs_at_once` submits."""

    def engine_options(self) -> Mapping[str, object]:
        """Return the engine's options; they must survive JSON, because the suite passes them to a launcher it kills."""
        return {}

    def make_engine(self) -> Engine:
        """Make a new engine; called for each test."""
        return make_engine(self.engine_name, self.engine_options())

    def launch(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[str]:
        """Start a process that uses the engine; override it to start the process on another machine."""
        return subprocess.Popen(argv, **popen_arguments)

    def lose(self, engine: Engine, id: str) -> None:
        """Kill a running job, or the machine it runs on, without the engine."""
        raise unittest.SkipTest(f"nobody said how to lose a job of {self.engine_name or type(self).__name__}")

    def leftovers(self) -> list[str]:
        """Describe leftovers of ended jobs that are not visible here, such as containers or files on hosts."""
        return []

    def visible_command_lines(self) -> Iterator[str]:
        """Yield the command lines that any user can read, on all machines of the engine that are visible here."""
        for folder in Path("/proc").glob("[0-9]*"):
            yield command_line(folder)

    # Helpers

    def _spec(
        self,
        code: str,
        *arguments: str,
        stdin: bytes = b"",
        environment: dict[str, str] | None = None,
        door: bool = False,
    ) -> JobSpec:
        command: Sequence[str] = [self.python, "-c", code, *arguments]
        return JobSpec(command, name="ropewalk-conformance", stdin=stdin, environment=environment or {}, door=door)

    @contextlib.contextmanager
    def _engine(self) -> Generator[tuple[Engine, str]]:
        """Yield a new engine and the id of a run; afterwards all jobs of the run are ended, and no leftovers remain."""
        engine = self._bounded_engine()
        run = new_run()
        with self._cleaned(engine, run):
            yield engine, run
        self._wait_for(lambda: not processes_of(run), lambda: f"these processes to end: {processes_of(run)}")
        self._wait_for(lambda: not self.leftovers(), lambda: f"this to be removed: {self.leftovers()}")

    def _bounded_engine(self) -> Engine:
        """Return a new engine whose calls raise `EngineHangs` when they do not return in time."""
        engine = self.make_engine()
        calls = _BoundedCalls(self._call_s)
        for name, _ in inspect.getmembers(Engine, inspect.isfunction):
            if not name.startswith("_") and callable(getattr(engine, name)):
                setattr(engine, name, functools.partial(calls.call, name, getattr(engine, name)))
        return engine

    @property
    def _call_s(self) -> float:
        return 4 * self.patience_s if self.call_s is None else self.call_s

    @contextlib.contextmanager
    def _cleaned(self, engine: Engine, run: str) -> Generator[None]:
        try:
            yield
        except EngineHangs:  # it may hold its lock for ever: nothing more is asked
            end_visible_processes(run)
            raise
        except BaseException:
            self._clean(engine, run)
            raise
        else:
            self._clean(engine, run)

    def _clean(self, engine: Engine, run: str) -> None:
        ids = engine.find(run)
        engine.cancel(ids)
        for id in ids:
            self._wait_until_over(engine, id)
        engine.close()

    @contextlib.contextmanager
    def _launcher(self, run: str) -> Generator[tuple[subprocess.Popen[str], list[str]]]:
        """Yield a process that has submitted two jobs, and their ids; a line on its stdin makes it kill itself."""
        if not self.engine_name:
            raise unittest.SkipTest("only an engine with a name can be made in another process")
        code = "import time; print('up', flush=True); time.sleep(600)"
        asked = {
            "name": self.engine_name,
            "options": dict(self.engine_options()),
            "command": [self.python, "-c", code],
            "run": run,
        }
        argv = [sys.executable, "-P", "-c", _LAUNCHER]
        process = self.launch(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdin and process.stdout
            try:
                process.stdin.write(json.dumps(asked) + "\n")
                process.stdin.flush()
                ready, _, _ = select.select([process.stdout], [], [], self._call_s)
                if not ready:
                    raise EngineHangs(
                        f"another launcher has not submitted two jobs within {self._call_s:g} s; {_IF_IT_HANGS}"
                    )
                said = process.stdout.readline()
                assert said, "the launcher ended before it had submitted its jobs; see its error output"
                yield process, json.loads(said)
            finally:
                process.kill()

    def _wait_until_over(self, engine: Engine, id: str) -> JobStatus:
        self._wait_for(lambda: engine.poll([id])[id].state in OVER, f"job {id} to end")
        return engine.poll([id])[id]

    def _wait_for(
        self, condition: Callable[[], object], what: str | Callable[[], str], patience_s: float | None = None
    ) -> str:
        """Wait until a condition is true, and return its value if that is a text."""
        patience_s = self.patience_s if patience_s is None else patience_s
        deadline = time.monotonic() + patience_s
        pause_s = 0.01
        while not (value := condition()):
            words = what if isinstance(what, str) else what()
            assert time.monotonic() < deadline, f"waited {patience_s:g} s for {words}"
            time.sleep(pause_s)
            pause_s = min(0.25, 1.2 * pause_s)  # many engines answer by starting a command
        return value if isinstance(value, str) else ""


class EngineHangs(AssertionError):
    """A call of the engine under test has not returned in time."""


class _BoundedCalls:
    """Makes the calls of an engine in threads of their own, one after the other, and gives up those that hang."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._inside = threading.local()

    def call(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method.

        Raises:
            EngineHangs: it has not returned in time; the error says where it is.
        """
        if getattr(self._inside, "is_bounded", False):  # the engine calls itself, perhaps while it holds a lock
            return method(*args, **kwargs)
        outcome: list[tuple[Any, BaseException | None]] = []

        def make() -> None:
            self._inside.is_bounded = True
            try:
                outcome.append((method(*args, **kwargs), None))
            except BaseException as error:
                outcome.append((None, error))

        thread = threading.Thread(target=make, name=f"engine-{name}", daemon=True)
        thread.start()
        thread.join(self._most_s)
        if not outcome:
            frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
            where = "".join(traceback.format_stack(frame)) if frame else "  (it has just ended)\n"
            raise EngineHangs(
                f"{name}() of the engine has not returned within {self._most_s:g} s: {_IF_IT_HANGS}. It is "
                f"here:\n{where}"
            )
        returned, error = outcome[0]
        if error is not None:
            raise error
        return returned


class CommandLineWatch(threading.Thread):
    """Reads all command lines continuously, because those of short commands are visible only for a moment."""

    def __init__(self, read: Callable[[], Iterator[str]], secret: str) -> None:
        super().__init__(name="command-line-watch")
        self.seen: set[str] = set()
        self._read = read
        self._secret = secret
        self._stopping = threading.Event()

    def run(self) -> None:
        """Read until `stop`."""
        while not self._stopping.is_set():
            self.seen.update(line for line in self._read() if self._secret in line)
            self._stopping.wait(0.005)

    def stop(self) -> None:
        """Stop, and wait for the last reading."""
        self._stopping.set()
        self.join()


def processes_of(run_id: str) -> list[str]:
    """Return the visible processes of a run, as `pid: command line`.

    A job's processes inherit ROPEWALK_RUN_ID. Those of this machine are visible, and to root those of its containers.
    """
    return [f"{folder.name}: {command_line(folder)[:200]}" for folder in _folders_of(run_id)]


def end_visible_processes(run_id: str) -> None:
    """Kill the processes of a run that are visible here."""
    for folder in _folders_of(run_id):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(folder.name), signal.SIGKILL)


def secrets_in_environment(run_id: str, secret: str) -> list[str]:
    """Return the processes of a run with a secret in their environment, which their children would inherit."""
    return [
        f"{folder.name}: {command_line(folder)[:200]}"
        for folder in _folders_of(run_id)
        if secret.encode() in _read(folder / "environ")
    ]


def command_line(folder: Path) -> str:
    """Return the arguments of the process of a folder in /proc; empty if it is gone."""
    return _read(folder / "cmdline").replace(b"\0", b" ").decode(errors="replace")


def _folders_of(run_id: str) -> Iterator[Path]:
    mark = f"ROPEWALK_RUN_ID={run_id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if mark in _read(folder / "environ").split(b"\0"):  # a zombie has no environment any more
            yield folder


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process is gone, or another user's
        return b""


def new_run() -> str:
    """Return a unique id of a run."""
    return f"conformance-{os.urandom(4).hex()}"
