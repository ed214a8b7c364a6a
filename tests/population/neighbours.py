"""Several hosts on this machine: an engine of agents that know each other by TLS over loopback, as on a network."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def session_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> rw.Session:
    monkeypatch.setitem(ENGINES, "neighbours", f"{__name__}:Neighbours")
    # These hosts are lost by a signal, which is heard at once, and never by silence, which may be a busy machine's.
    monkeypatch.setenv("ROPEWALK_LEASE_S", "30")
    monkeypatch.setenv("ROPEWALK_CODE", "shared")  # what is under test is here: no bundle of it for each agent
    return rw.Session("neighbours", hosts=2)


def lose_host(agent: psutil.Process) -> None:
    """Kill an agent, with which all its processes die, and clear away what it had in files: its host is gone."""
    there = agent.children(recursive=True)
    folders = {Path(str(connection.laddr)).parent for connection in agent.net_connections("unix")}
    agent.kill()
    psutil.wait_procs(there, timeout=PATIENCE_S)
    for folder in folders:
        if folder.name.startswith("ropewalk-"):
            shutil.rmtree(folder)
