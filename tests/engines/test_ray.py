"""Ray: the suite of all engines on a cluster of three machines, and what Ray itself tells late or not at all."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from ropewalk.engines.engine import Engine
from ropewalk.engines.ray import RayEngine
from ropewalk.testing.engine_conformance import EngineConformance
from tests.conftest import Snapshot
from tests.lab.ray import RayCluster, ray_cluster

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(3) as cluster:
        engine = engine_of(cluster)
        wait_until(lambda: len(engine.hosts()) == 3, "three nodes to be there")
        engine.close()
        yield cluster


@pytest.fixture(autouse=True)
def _nothing_is_left(cluster: RayCluster) -> Iterator[None]:
    """As everywhere, but for the processes that the cluster starts for itself whenever it likes."""
    before = Snapshot.take()
    yield
    deadline = time.monotonic() + 10

    def left() -> str:
        new = Snapshot.take().without(before)
        new.processes = {key: words for key, words in new.processes.items() if not cluster.is_rays_own(key[0])}
        return new.describe()

    while words := left():
        assert time.monotonic() < deadline, f"the test left behind:\n{words}"
        time.sleep(0.1)


class InTheCluster(RayEngine):
    """Has its driver on the head's machine, where it would be if the launcher ran there."""

    cluster: RayCluster

    def _popen(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[bytes]:
        return self.cluster.popen(argv, **popen_arguments)


def engine_of(cluster: RayCluster, **options: object) -> RayEngine:
    class Engine(InTheCluster):
        pass

    Engine.cluster = cluster
    return Engine({"address": cluster.address, "token_path": "/given/by/the/environment", **options})


def wait_until(condition: Any, what: str, patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience_s:g} s for {what}"
        time.sleep(0.05)


class TestRay(EngineConformance):
    engine_name = "ray"
    num_jobs = 8
    lost_s = 5.0

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: RayCluster) -> None:
        self.cluster = cluster

    def engine_options(self) -> Mapping[str, object]:
        return {"address": self.cluster.address}

    def make_engine(self) -> Engine:
        return engine_of(self.cluster)

    def launch(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[str]:
        return self.cluster.popen(argv, **popen_arguments)

    def lose(self, engine: Engine, id: str) -> None:
        reason = engine.poll([id])[id].reason
        where = re.search(r"on node (\S+) \(process (\d+)\)", reason)
        assert where, f"a running job should say where it runs: {reason!r}"
        machine = next(machine for machine in self.cluster.machines if machine.ip == where[1])
        machine.run(["kill", "-9", where[2]])
