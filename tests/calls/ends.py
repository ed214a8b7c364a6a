"""Servers and clients of calls for tests: real loops and real sockets, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ropewalk.calls.caller import Caller
from ropewalk.calls.client import Client
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.calls.markers import methods_of
from ropewalk.calls.messages import CALLS
from ropewalk.calls.server import CallServer, Served
from ropewalk.processes.notifier import Notifier
from ropewalk.transport.address import UnixAddress
from ropewalk.transport.loop_with_deputies import LoopWithDeputies
from ropewalk.transport.server import UnixListener
from ropewalk.transport.tokens import TokenList, token_of
from tests.patience import PATIENCE_S

RUN = "run-1"
KEY = "key"
ROOT = Path(__file__).parents[2]


class Places:
    """A directory that tests write."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], ReplicaLocation] = {}
        self._news = Notifier()

    def put(self, name: str, place: ReplicaLocation, replica: int = 0) -> None:
        self._places[name, replica] = place
        self._news.ring()

    def find(self, name: str, replica: int) -> ReplicaLocation:
        return self._places[name, replica]

    def replicas(self, name: str) -> int:
        return sum(known == name for known, _ in self._places)

    def wait_for_news(self, name: str, replica: int, seen: ReplicaLocation, timeout_s: float) -> ReplicaLocation:
        self._news.wait_until(lambda: self._places[name, replica] != seen, timeout_s)
        return self._places[name, replica]


class End:
    """One process's worth of calls: a loop, a server at an address, a caller."""

    def __init__(self, folder: Path, name: str, places: Places) -> None:
        self.loop = LoopWithDeputies()
        self.server = CallServer(self.loop)
        self.address = str(UnixAddress(str(folder / f"{name}.sock")))
        self.places = places
        self.caller = Caller(self.loop, places, RUN, name)
        self.token = token_of(KEY, name)
        self.links: list[Any] = []
        self.listener = UnixListener(self.loop, str(folder / f"{name}.sock"), RUN, TokenList(KEY), CALLS, self._linked)
        self.loop.call_soon(self.listener.open)
        self.loop.start(name)

    def _linked(self, _id: str, link: Any) -> None:
        self.links.append(link)
        self.server.attend(link)

    def serve(self, obj: object, name: str, replica: int = 0, *, callers: str = "client") -> Served:
        served = self.server.serve(obj, methods_of(type(obj)), name)
        self.places.put(name, ReplicaLocation("up", self.address, served.target, token_of(KEY, callers)), replica)
        return served

    def client(self, name: str, cls: type, address: str | int = "any", *, retries: bool = False) -> Any:
        return Client(self.caller, name, address, methods_of(cls), retries=retries)

    def close(self) -> None:
        self.caller.close()
        self.server.close()
        closed = threading.Event()
        self.loop.call_soon(lambda: (self.listener.close(), closed.set()))
        closed.wait(PATIENCE_S)
        self.loop.stop()
        assert self.loop.ended.wait(PATIENCE_S)


class FarProcess:
    """A process that serves one object of `tests.calls.objects`."""

    def __init__(self, folder: Path, cls: str, name: str = "far", places: Places | None = None) -> None:
        self.path = str(folder / f"{name}.sock")
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.calls.far_process", self.path, cls], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert self.process.stdout
        line = self.process.stdout.readline().split()
        self.place = ReplicaLocation("up", str(UnixAddress(self.path)), int(line[1]), token_of(KEY, "client"))
        if places:
            places.put(name, self.place)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


@contextlib.contextmanager
def ends(folder: Path, *names: str) -> Generator[Any]:
    """Some ends that share a directory."""
    places = Places()
    made = [End(folder, name, places) for name in names]
    try:
        yield made[0] if len(made) == 1 else made
    finally:
        for end in made:
            end.close()


@contextlib.contextmanager
def far(folder: Path, cls: str = "Target") -> Generator[tuple[FarProcess, End, Any]]:
    """A served object in another process, our end, and a client of it."""
    from tests.calls import objects

    with ends(folder, "client") as end:
        process = FarProcess(folder, cls, "far", end.places)
        try:
            yield process, end, end.client("far", getattr(objects, cls))
        finally:
            process.close()


def num_memory_files(pid: int | str = "self") -> int:
    """Memory files of calls that a process holds open or mapped."""
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            count += "ropewalk-call" in os.readlink(f"/proc/{pid}/fd/{fd}")
    return count
