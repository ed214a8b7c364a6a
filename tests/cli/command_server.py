"""Runs `ropewalk` commands in forks of a process that has imported what they need: 0.05 s of CPU time, not 0.35.

    test ──arguments, environment, stdout, stderr──▶ server ──fork──▶ command
      ◀────────────── pid, exit code ────────────────┘

One command at a time. A command has the arguments, folder, environment, import path and streams that it would have as
`python -m ropewalk`, and a `__main__` of its own; what it starts are new processes. The script of `ropewalk run` finds
more imported here than a user's does: tests for which that matters run it alone.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, NoReturn

LIMIT_S = 120.0  # as tests/patience.py has it, which the server does not find
_REQUEST_BYTES = 1 << 20


class CommandServer:
    """The server, as a test sees it; started with the block, and ended with it."""

    def __enter__(self) -> CommandServer:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

    def run(self, arguments: list[str], folder: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, and to the end of what it prints."""
        pipes = [os.pipe(), os.pipe()]
        request = json.dumps([arguments, folder, environment]).encode()
        socket.send_fds(self._socket, [request], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        pid = int(self._socket.recv(100))
        printed = {read: b"" for read, _ in pipes}
        code: int | None = None
        due = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as selector:
            for one in (*printed, self._socket.fileno()):
                selector.register(one, selectors.EVENT_READ)
            while selector.get_map():
                if time.monotonic() > due:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                for key, _ in selector.select(0.5):
                    if key.fd == self._socket.fileno():
                        code = int(self._socket.recv(100))
                    elif data := os.read(key.fd, 1 << 16):
                        printed[key.fd] += data
                        continue
                    else:
                        os.close(key.fd)
                    selector.unregister(key.fd)
        if time.monotonic() > due:
            raise subprocess.TimeoutExpired(["ropewalk", *arguments], LIMIT_S, *printed.values())
        assert code is not None
        out, err = (data.decode() for data in printed.values())
        return subprocess.CompletedProcess(["ropewalk", *arguments], code, out, err)


def _serve(requests: socket.socket) -> None:
    _import_commands()
    while True:
        data, streams, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if not data:
            return
        command = os.fork()
        if not command:
            requests.close()
            arguments, folder, environment = json.loads(data)
            _become_command(arguments, folder, environment, streams)
        for stream in streams:
            os.close(stream)
        requests.send(str(command).encode())
        _, status = os.waitpid(command, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def _import_commands() -> None:
    for module in pkgutil.iter_modules(importlib.import_module("ropewalk.cli").__path__):
        importlib.import_module(f"ropewalk.cli.{module.name}")


def _become_command(arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> NoReturn:
    code = 1
    try:
        for stream, target in zip(streams, (1, 2), strict=True):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(folder)
        own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        theirs = environment.get("PYTHONPATH", "").split(os.pathsep)
        rest = [entry for entry in sys.path[1:] if entry not in own]
        sys.path[:] = [os.getcwd(), *filter(None, theirs), *rest]
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        sys.argv[:] = ["ropewalk", *arguments]
        runpy.run_module("ropewalk", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = _exit_code(stop.code)
    except BaseException:
        traceback.print_exc()
    finally:
        for end in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                end()
        os._exit(code)


def _exit_code(code: Any) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _requests:
        _serve(_requests)
