"""What workers of `test_deaths.py` run; it imports only what costs nothing there, as each new session does it again."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ropewalk.transport.link import Link
from tests.scenarios.tasks import note, wait_for_file


def slow_square(number: int) -> int:
    time.sleep(0.0004)
    return number * number


def weigh(weights: bytes, number: int) -> int:
    time.sleep(0.01)
    return weights[number % 256] + len(weights)


def sleep_in_a_session_of_its_own(_: object = None) -> tuple[int, int]:
    """Start a program that leaves the worker's session, through one that ends, and return (worker, program)."""
    command = "import os, sys, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    return os.getpid(), int(child.stdout.readline())


def fork_away(_: object = None) -> tuple[int, int]:
    """Fork a child that leaves the worker's session and says nothing, and return (worker, child)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.write(writer, b"x")
        time.sleep(1000)
        os._exit(0)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return os.getpid(), child


def gated_pid(folder: str, number: int) -> int:
    note(f"{folder}/started", f"{number}:{os.getpid()}")
    wait_for_file(f"{folder}/gate")
    return os.getpid()


def die_while_sending(flag: str, moment: str, size_bytes: int) -> bytes:
    """The first time, the worker is killed while its result is on the way."""
    if not os.path.exists(flag):
        note(flag, "died")
        send = Link.send

        def send_and_die(self: Link, message: Any, parts: Any = (), fds: Any = ()) -> None:
            if moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if moment == "half":
                whole = self.stream.send

                def send_half(buffers: Any, fds: Any = ()) -> int:
                    whole([buffers[0][:20]] if fds else [buffers[-1][: len(buffers[-1]) // 2]], fds)
                    os.kill(os.getpid(), signal.SIGKILL)
                    return 0

                self.stream.send = send_half  # type: ignore[method-assign]
            send(self, message, parts, fds)
            os.kill(os.getpid(), signal.SIGKILL)

        Link.send = send_and_die  # type: ignore[method-assign]
    return os.urandom(1) * size_bytes


def leave_a_program_behind(_: object = None) -> tuple[int, int]:
    """Start a program through a shell that ends at once, as daemons do, and return (worker, program)."""
    shell = subprocess.run("sleep 1000 > /dev/null 2>&1 & echo $!", shell=True, capture_output=True, text=True)
    return os.getpid(), int(shell.stdout)


def print_and(action: Callable[[], object], number: int) -> int:
    if number == 3:
        print("first words", flush=True)
        print("last words", file=sys.stderr, flush=True)
        action()
    return number


def segfault() -> None:
    ctypes.string_at(0)
