"""Several hosts on this machine: an engine of agents that know each other by TLS over loopback, as on a network."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Mapping, Sequence

import psutil
import pytest

import ropewalk as rw
from ropewalk.engines import ENGINES
from ropewalk.engines.engine import Reach
from ropewalk.engines.local import LocalEngine
from ropewalk.engines.resources import Resources
from tests.patience import PATIENCE_S


class Neighbours(LocalEngine):
    """Starts agents here that are told nothing of each other; each hosts two processes."""

    name = "neighbours"
    reach = Reach.NETWORK

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        super().__init__({})

    def per_job(self, process: Resources) -> int | None:
        return 2

    def hosts(self) -> Sequence[str]:  # type: ignore[override]
        return ["127.0.0.1"]


@contextlib.contextmanager
def files_of_hosts(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Remove the files of hosts after the block: those of a host that is lost stay, as after any SIGKILL.

    Also those of an agent that is killed while it starts because its session has ended.
    """
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@contextlib.contextmanager
def session_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> Generator[rw.Session]:
    """Open a session of two hosts, whose files go with it."""
    monkeypatch.setitem(ENGINES, "neighbours", f"{__name__}:Neighbours")
    # These hosts are lost by a signal, which is heard at once, and never by silence, which may be a busy machine's.
    monkeypatch.setenv("ROPEWALK_LEASE_S", "30")
    monkeypatch.setenv("ROPEWALK_CODE", "shared")  # what is under test is here: no bundle of it for each agent
    with files_of_hosts(monkeypatch), rw.Session("neighbours", hosts=2) as session:
        yield session


def lose_host(agent: psutil.Process) -> None:
    """Kill an agent, with which all its processes die."""
    there = agent.children(recursive=True)
    agent.kill()
    psutil.wait_procs(there, timeout=PATIENCE_S)
