"""Launchers of their own: scripts that tests start, stop and kill, and what hangs below them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import psutil

import ropewalk
from tests.cli.command import environment
from tests.patience import wait_until
from tests.rest_of import rest_of

#: Stands at the top of every script: words to the test, the pids of a tree, and a gate that the test opens.
PREAMBLE = """
    import ctypes, functools, os, signal, subprocess, sys, threading, time
    import psutil, ropewalk

    def say(*words):
        # In one piece: what workers print comes from another thread.
        sys.stdout.write(" ".join(map(str, words)) + chr(10))
        sys.stdout.flush()

    def tree():
        return [child.pid for child in psutil.Process().children(recursive=True)]

    def square(number):
        time.sleep(0.005)
        return number * number
"""


class Launcher:
    """A script that runs in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        """The next line that it says; fails with its errors if it ends instead."""
        assert self.process.stdout and self.process.stderr
        line = self.process.stdout.readline()
        assert line, f"the script ended: {self.process.stderr.read()}"
        return line.rstrip("\n")

    def numbers(self) -> list[int]:
        """The next line, which holds numbers."""
        return [int(word) for word in self.line().split()]

    def tell(self, line: str) -> None:
        """Something for its standard input."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = 120.0) -> tuple[int, str, str]:
        """Wait for its end: exit code, the rest of its output, its errors."""
        out, errors = rest_of(self.process, timeout_s)
        return self.process.returncode, out, errors


@contextlib.contextmanager
def launcher(
    source: str, folder: Path, *arguments: str, prepare: Callable[[], None] | None = None, **variables: str
) -> Generator[Launcher]:
    """Run a script; it is killed at the end of the block if it still runs.

    Args:
        source: after `PREAMBLE`.
        folder: where the script is written.
        arguments: before the script's name: none for plain Python, else such as `-m ropewalk run`.
        prepare: called in the new process before anything else.
        variables: changes of its environment.
    """
    script = folder / "script.py"
    script.write_text(textwrap.dedent(PREAMBLE) + textwrap.dedent(source))

    process = subprocess.Popen(
        [sys.executable, *arguments, str(script)],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,  # mostly nothing: a fork of the whole process of the tests takes longer than one of vfork
    )
    try:
        yield Launcher(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pids: Iterable[int], timeout_s: float = 120.0) -> float:
    """Wait for the ends of processes; returns the seconds it took."""
    pids = list(pids)
    begun = time.monotonic()
    wait_until(lambda: not any(map(is_alive, pids)), timeout_s=timeout_s, what=f"the ends of {pids}")
    return time.monotonic() - begun


def agent_of(pool: ropewalk.Pool) -> psutil.Process:
    """The agent that hosts a pool's workers."""
    (pid,) = pool._session.agent_pids()
    return psutil.Process(pid)


def fork_server_of(pool: ropewalk.Pool) -> psutil.Process:
    """The fork server that the workers come from."""
    servers: list[psutil.Process] = []

    def found() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = sorted(agent_of(pool).children(), key=lambda child: child.create_time())
            servers[:] = [child for child in children if child.name() == "rw-forkserver"]
        return bool(servers)

    wait_until(found)
    # A worker bears this name too for a moment, after its fork. The server is older, but its number need not be lower:
    # the kernel begins again at 300 after the last one.
    return servers[0]


def pids_of(pool: ropewalk.Pool) -> list[int]:
    """The workers' pids, once all are there."""
    pool.wait_until_ready(120)
    wait_until(lambda: all(worker.pid for worker in pool.status().workers))
    return [worker.pid for worker in pool.status().workers]


def suspend(pid: int) -> None:
    """SIGSTOP, and wait until it stands still: until the thread that got the signal runs, the others answer."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, what=f"{pid} stands still")


def wait_until_asleep(pid: int) -> None:
    """Until the main thread of a process has slept for 0.1 s without a break: it waits, and not for its turn alone."""
    status = Path(f"/proc/{pid}/task/{pid}/status")

    def looked() -> list[str]:
        return [line for line in status.read_text().splitlines() if line.startswith("State") or "ctxt_switches" in line]

    def sleeps() -> bool:
        before = looked()
        time.sleep(0.1)
        return "S (sleeping)" in before[0] and looked() == before

    wait_until(sleeps, what=f"{pid} waits")


def kill(pid: int) -> None:
    """SIGKILL, to whoever is still there."""
    assert pid > 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
