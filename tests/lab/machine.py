"""A machine of the lab: network, UTS, PID, IPC and mount namespaces with its own /tmp, /run and /dev/shm.

The root file system is that of the host, so Python, the virtual environment and this
repository are there under their usual paths.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.lab import namespaces, wires

Result = TypeVar("Result")

#: Hidden below folders of the machine's own.
OWN_FOLDERS = {"/tmp": "mode=1777", "/run": "mode=755", "/dev/shm": "mode=1777"}
REPOSITORY = Path(__file__).resolve().parents[2]
#: Daemons live here; not on every user's path.
MORE_PATHS = "/usr/sbin:/sbin"
_INIT = Path(__file__).with_name("init.py")


class Machine:
    """Made by `Lab.machine`; everything in it dies at once with its process 1."""

    def __init__(self, name: str, shared: Sequence[Path] = ()) -> None:
        """Make the namespaces and start process 1.

        Args:
            name: its host name.
            shared: folders of the host below /tmp, /run or /dev/shm that are to be seen in it too, under the same path.
        """
        self.name = name
        #: How others reach it; "" until it has been connected. Behind a NAT: an address that others do not reach.
        self.ip = ""
        self._processes: list[subprocess.Popen[Any]] = []
        self._lock = threading.Lock()
        self._plugged = False
        # The environment and the sources have to be seen in any case.
        seen = [Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, *shared]
        self._init = namespaces.in_thread(lambda: _boot(name, seen))
        self.pid = self._init.pid
        self._namespaces = [namespaces.descriptor_of(self.pid, kind) for kind in namespaces.KINDS]
        #: By kind, as in /proc/PID/ns; to look for what is left.
        self.inodes = {kind: os.fstat(fd).st_ino for kind, fd in zip(namespaces.KINDS, self._namespaces, strict=True)}

    def __repr__(self) -> str:
        return f"Machine({self.name!r}, ip={self.ip!r}, pid={self.pid}{', plugged' if self._plugged else ''})"

    def visit(self, act: Callable[[], Result]) -> Result:
        """Call `act` in a thread of this process that is in the machine, and return its result.

        The thread sees the machine's files, and no process of the tests in /proc, not even itself.
        """
        return self._move_into(self._namespaces, act)

    def on_wire(self, act: Callable[[], Result]) -> Result:
        """Call `act` in a thread of this process that is in the machine's network, and return its result.

        Sockets that it makes belong to that network and go on doing so; files and processes are those of the tests.
        """
        return self._move_into([self._namespaces[namespaces.KINDS.index("net")]], act)

    def _move_into(self, spaces: Sequence[int], act: Callable[[], Result]) -> Result:
        if self._plugged:
            raise RuntimeError(f"machine {self.name} was plugged; nothing can be started in it any more")

        def act_inside() -> Result:
            namespaces.enter(spaces)
            return act()

        return namespaces.in_thread(act_inside)

    def popen(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **popen_kwargs: Any
    ) -> subprocess.Popen[Any]:
        """Start a program inside; its pid, signals and exit code are those of the program itself.

        Args:
            argv: the program, looked up inside, and its arguments.
            env: on top of the environment of the tests with TMPDIR=/tmp and XDG_RUNTIME_DIR=/run.
            popen_kwargs: as for `subprocess.Popen`; `cwd` is a path inside, by default the current folder of the tests.
        """
        environment = {**os.environ, "TMPDIR": "/tmp", "XDG_RUNTIME_DIR": "/run"}
        environment["PATH"] = f"{environment.get('PATH', '/usr/bin:/bin')}:{MORE_PATHS}"
        here = os.getcwd()

        def start() -> subprocess.Popen[Any]:
            cwd = popen_kwargs.pop("cwd", None) or (here if os.path.isdir(here) else "/")
            return subprocess.Popen(
                [str(word) for word in argv], env={**environment, **(env or {})}, cwd=cwd, **popen_kwargs
            )

        process = self.visit(start)
        with self._lock:
            self._processes.append(process)
        return process

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float = 30,
        check: bool = True,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        **popen_kwargs: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside to its end; text in and out. A failure's message holds its output."""
        popen_kwargs.setdefault("stdin", subprocess.DEVNULL if input is None else subprocess.PIPE)
        popen_kwargs.setdefault("stdout", subprocess.PIPE)
        popen_kwargs.setdefault("stderr", subprocess.PIPE)
        with self.popen(argv, env=env, text=True, **popen_kwargs) as process:
            try:
                out, err = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check and done.returncode != 0:
            words = " ".join(map(str, argv))
            raise AssertionError(f"on {self.name}, `{words}` ended with {done.returncode}:\n{out or ''}{err or ''}")
        return done

    def python(self, source: str, *arguments: str, **popen_kwargs: Any) -> subprocess.Popen[Any]:
        """Start a Python program, given as its source, in the environment of the tests."""
        return self.popen([sys.executable, "-c", source, *arguments], **popen_kwargs)

    def path(self, inside: str) -> Path:
        """An absolute path inside, as seen from outside; absolute symbolic links on the way lead astray."""
        if self._plugged:
            raise RuntimeError(f"machine {self.name} was plugged; its files are gone")
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def listen(self, port: int = 0) -> socket.socket:
        """A listening TCP socket at the machine's address, for use in the process of the tests."""
        return self.on_wire(lambda: socket.create_server((self.ip, port)))

    def connect(self, ip: str, port: int, timeout_s: float = 5.0) -> socket.socket:
        """A TCP connection from this machine, for use in the process of the tests."""
        return self.on_wire(lambda: socket.create_connection((ip, port), timeout=timeout_s))

    def bytes_received(self) -> int:
        """Bytes that came to it over the wire so far."""
        return counters(self.pid)["eth0"][0]

    def bytes_sent(self) -> int:
        """Bytes that it put on the wire so far."""
        return counters(self.pid)["eth0"][1]

    @property
    def is_plugged(self) -> bool:
        return self._plugged

    def kill(self) -> None:
        """End every process of the machine at once, with SIGKILL, and wait until they are gone."""
        if self._plugged:
            return
        self._plugged = True
        self._init.send_signal(signal.SIGKILL)
        with self._lock:
            processes = self._processes
        # Process 1 is gone only when these are buried, and who started them is their parent: this process.
        for process in [*processes, self._init]:
            process.wait()
        # A test that failed has not closed its pipes, and each would be one more error.
        for process in processes:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was still to be written to a dead process
                        stream.close()

    def close(self) -> None:
        """Kill it, and let go of its namespaces; until then nothing else in the kernel has their numbers."""
        self.kill()
        while self._namespaces:
            os.close(self._namespaces.pop())


def counters(pid: int | None) -> dict[str, tuple[int, int]]:
    """Bytes received and sent by each interface in the network of a process, or of this thread."""
    owner = "thread-self" if pid is None else str(pid)
    found: dict[str, tuple[int, int]] = {}
    for line in Path(f"/proc/{owner}/net/dev").read_text().splitlines()[2:]:
        name, numbers = line.split(":")
        fields = numbers.split()
        found[name.strip()] = int(fields[0]), int(fields[8])
    return found


def processes_in(inodes: Mapping[str, int]) -> list[str]:
    """Processes that are in one of these namespaces, described."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            for kind, inode in inodes.items():
                if os.stat(f"/proc/{process.pid}/ns/{kind}").st_ino == inode:
                    found.append(f"pid {process.pid} ({' '.join(process.cmdline())[:100]}) in its {kind} namespace")
                    break
    return found


def _boot(name: str, seen: Sequence[Path]) -> subprocess.Popen[bytes]:
    """In a thread of its own: make the namespaces, and start process 1 in them."""
    kinds = namespaces.NEW_NETWORK | namespaces.NEW_HOSTNAME | namespaces.NEW_IPC | namespaces.NEW_MOUNTS
    namespaces.leave_for_new(kinds | namespaces.NEW_PIDS)
    namespaces.set_hostname(name)
    namespaces.keep_mounts_private()
    hidden = [
        path.resolve() for path in seen if str(path.resolve()).startswith(tuple(f"{own}/" for own in OWN_FOLDERS))
    ]
    # Once something is mounted over them, they are reached only through descriptors from before.
    descriptors = [os.open(path, os.O_PATH) for path in hidden]
    for folder, options in OWN_FOLDERS.items():
        namespaces.mount("tmpfs", folder, "tmpfs", options)
    for path, descriptor in zip(hidden, descriptors, strict=True):
        os.makedirs(path, exist_ok=True)
        namespaces.bind(f"/proc/thread-self/fd/{descriptor}", str(path))
        os.close(descriptor)
    Path("/run/hosts").touch()  # the lab writes it
    namespaces.bind("/run/hosts", "/etc/hosts")
    wires.hush()
    tests = os.pidfd_open(os.getpid())
    try:
        init = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_INIT), str(tests)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=[tests],
        )
    finally:
        os.close(tests)
    assert init.stdout is not None
    with init.stdout:
        said = init.stdout.read()
    if said != b"up":
        init.wait()
        raise RuntimeError(f"machine {name} did not start; its process 1 ended with {init.returncode}")
    return init
