"""Ray: the suite of all engines on a cluster of three machines, and what Ray itself tells late or not at all."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines.engine import Engine, JobSpec, JobState
from ropewalk.engines.ray import RayEngine
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from ropewalk.testing.engine_conformance import EngineConformance
from ropewalk.testing.engine_under_test import processes_of
from tests.lab import Machine
from tests.lab.ray import RayCluster, ray_cluster
from tests.left_behind import Snapshot
from tests.patience import wait_until

pytestmark = pytest.mark.lab

_NAMESPACE = re.compile(r"-> (ipc|uts|net|pid|mnt):")

_FORKING_LAUNCHER = """
import os, signal, sys, time
from ropewalk.engines import make_engine
from ropewalk.engines.engine import JobSpec
engine = make_engine("ray", {"address": sys.argv[1]})
[id] = engine.submit(JobSpec(["sleep", "600"]), 1, "run of a forking launcher", "a")
while engine.poll([id])[id].state.value != "running":
    time.sleep(0.05)
if os.fork() == 0:
    time.sleep(8)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
_KILL_RAYLET = """
import os, pathlib, signal
[pid] = [int(file.parent.name) for file in pathlib.Path("/proc").glob("[0-9]*/comm") if file.read_text() == "raylet\\n"]
os.kill(pid, signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(3) as cluster:
        wait_for_nodes(cluster, cluster.machines)
        yield cluster


@pytest.fixture(autouse=True)
def _nothing_is_left(cluster: RayCluster) -> Iterator[None]:
    """As everywhere, but for the processes that the cluster starts for itself whenever it likes."""
    before = Snapshot.take()
    yield
    deadline = time.monotonic() + 120

    def left() -> str:
        new = Snapshot.take().without(before)
        new.processes = {key for key in new.processes if not cluster.is_rays_own(key[0])}
        # A lab keeps those of a machine that was plugged until it is closed.
        new.descriptors = {key: words for key, words in new.descriptors.items() if not _NAMESPACE.search(words)}
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


def wait_for_nodes(cluster: RayCluster, machines: Collection[Machine]) -> None:
    engine = engine_of(cluster)
    try:
        wait_until(lambda: {machine.ip for machine in machines} <= set(engine.hosts()), "nodes to join")
    finally:
        engine.close()


class TestRay(EngineConformance):
    engine_name = "ray"
    num_jobs = 8
    lost_s = 5.0
    time_limit_s = 0.5

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


@pytest.fixture
def engine(cluster: RayCluster) -> Iterator[RayEngine]:
    with made(cluster) as engine:
        yield engine


@contextlib.contextmanager
def made(cluster: RayCluster, **options: object) -> Generator[RayEngine]:
    engine = engine_of(cluster, **options)
    try:
        yield engine
    finally:
        engine.cancel([id for ids in engine.runs().values() for id in ids])
        engine.close()


def spec(code: str, **facts: Any) -> JobSpec:
    return JobSpec([sys.executable, "-c", code], **facts)


SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def states(engine: RayEngine, ids: Sequence[str]) -> list[JobState]:
    return [status.state for status in engine.poll(ids).values()]


def test_a_lost_job_is_replaced_although_the_cluster_was_full(engine: RayEngine) -> None:
    """Its place in the placement group is still held for this run; who asks for a new place would wait for ever."""
    whole = spec(SLEEP, resources=Resources(cpus=4))
    ids = engine.submit(whole, 3, "run", "first")
    wait_until(lambda: states(engine, ids) == [JobState.RUNNING] * 3, "a job on each node")
    assert len({engine.poll([id])[id].reason.split()[2] for id in ids}) == 3, "they are spread over the nodes"
    engine.cancel(ids[1:2])
    [replacement] = engine.submit(whole, 1, "run", "second")
    wait_until(lambda: states(engine, [replacement]) == [JobState.RUNNING], "the replacement to run")

    [waiting] = engine.submit(whole, 1, "other", "first")
    words = "waits for 1 places with {'CPU': 4}; free in the whole cluster: {'CPU': 0"
    wait_until(lambda: engine.poll([waiting])[waiting].reason.startswith(words), "a reason to wait")
    assert states(engine, [waiting]) == [JobState.PENDING]
    engine.cancel([ids[0], ids[2], replacement])
    wait_until(lambda: states(engine, [waiting]) == [JobState.RUNNING], "places that nobody uses to be given back")


@pytest.mark.parametrize(("placement", "num_nodes"), [("SPREAD", 3), ("STRICT_SPREAD", 3), ("STRICT_PACK", 1)])
def test_jobs_submitted_one_by_one_are_placed_as_asked(cluster: RayCluster, placement: str, num_nodes: int) -> None:
    """A launcher submits its agents so, and Ray knows nothing of jobs that belong together."""
    with made(cluster, placement=placement) as engine:
        ids = [engine.submit(spec(SLEEP), 1, "run", str(number))[0] for number in range(3)]
        wait_until(lambda: states(engine, ids) == [JobState.RUNNING] * 3, "the jobs to run")
        assert len({engine.poll([id])[id].reason.split()[2] for id in ids}) == num_nodes
        if placement == "STRICT_SPREAD":
            with pytest.raises(EngineError, match="wants a node for each job"):
                engine.submit(spec(SLEEP), 1, "run", "3")


def test_what_no_node_can_hold_is_refused_with_what_there_is(cluster: RayCluster, engine: RayEngine) -> None:
    """Ray would take it, and wait for ever."""
    with pytest.raises(EngineError, match=r"no node .* can hold a job with {'CPU': 64}; .* 3 nodes .*{'CPU': 4.0}"):
        engine.submit(spec(SLEEP, resources=Resources(cpus=64)), 1, "run", "a")
    with pytest.raises(EngineError, match=r"no node .* can hold a process that asks for {'CPU': 1, 'GPU': 1}"):
        engine.per_job(Resources(gpus=1))
    with made(cluster, placement="STRICT_SPREAD") as strict:
        with pytest.raises(EngineError, match=r"STRICT_SPREAD wants 4 nodes .* has 3"):
            strict.submit(spec(SLEEP), 4, "run", "a")
        assert strict.most_jobs() == 3
        assert strict.runs() == {}


def test_what_the_cluster_has_is_told(cluster: RayCluster, engine: RayEngine) -> None:
    assert sorted(engine.hosts()) == [machine.ip for machine in cluster.machines]
    assert (engine.per_job(Resources()), engine.per_job(Resources(cpus=3)), engine.per_job(Resources(cpus=0.5))) == (
        4,
        1,
        8,
    )
    findings = {finding.what: finding for finding in engine.check()}
    assert all(finding.ok for finding in findings.values()), findings
    assert "3 nodes" in findings["Ray cluster"].detail
    assert "by token" in findings["Ray authentication"].detail


def test_a_job_has_its_time_limit_its_runtime_environment_and_no_token(cluster: RayCluster) -> None:
    code = "import os, time; print(os.environ.get('RAY_AUTH_TOKEN'), os.environ['FROM_RAY'], flush=True); time.sleep(9)"
    with made(cluster, runtime_env='{"env_vars": {"FROM_RAY": "yes"}}') as engine:
        [id] = engine.submit(spec(code, time_limit_s=0.5), 1, "run", "a")
        wait_until(lambda: states(engine, [id]) == [JobState.ENDED], "the time limit to be over")
        status = engine.poll([id])[id]
        assert (status.exit_code, status.reason) == (-9, "its time limit was over")
        assert engine.logs(id) == "None yes\n"


def test_a_python_without_ropewalk_is_named(cluster: RayCluster) -> None:
    with made(cluster, python=str(Path(sys.base_prefix, "bin", "python3"))) as engine:
        [id] = engine.submit(spec(SLEEP), 1, "run", "a")
        wait_until(lambda: states(engine, [id]) == [JobState.LOST], "the keeper to have ended")
        assert re.search("No module named.*ropewalk.*install ropewalk for the Python", engine.poll([id])[id].reason)


def test_an_actor_that_does_not_answer_is_lost_until_it_answers(cluster: RayCluster, engine: RayEngine) -> None:
    """Ray itself would call it alive."""
    [id] = engine.submit(spec(SLEEP), 1, "run", "a")
    wait_until(lambda: "up" in engine.logs(id), "the job to run")
    ip, pid = re.findall(r"on node (\S+) \(process (\d+)\)", engine.poll([id])[id].reason)[0]
    machine = next(machine for machine in cluster.machines if machine.ip == ip)
    machine.run(["kill", "-STOP", pid])
    wait_until(lambda: states(engine, [id]) == [JobState.LOST], "silence to be noticed")
    assert re.search("has not answered for [45].. s; Ray calls its node alive", engine.poll([id])[id].reason)
    assert "up" in engine.logs(id), "what it had said before"
    machine.run(["kill", "-CONT", pid])
    wait_until(lambda: states(engine, [id]) == [JobState.RUNNING], "the actor to answer again")


def test_jobs_end_with_the_driver(engine: RayEngine) -> None:
    """With all they started, whoever kills it; the next question starts a new one, to which they are unknown."""
    child = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True); "
    [id] = engine.submit(spec(child + SLEEP), 1, "run-of-a-killed-driver", "a")
    wait_until(lambda: "up" in engine.logs(id), "the job to run")
    assert len([words for words in processes_of("run-of-a-killed-driver") if "sleep" in words]) == 2
    assert engine._driver
    engine._driver._process.kill()
    assert states(engine, [id]) == [JobState.LOST]
    wait_until(lambda: not processes_of("run-of-a-killed-driver"), "the job to end")


def test_jobs_end_with_a_launcher_although_its_forked_child_lives(cluster: RayCluster) -> None:
    """The child has the descriptors of its parent, so that the driver's standard input does not end."""
    launcher = cluster.popen([sys.executable, "-c", _FORKING_LAUNCHER, cluster.address])
    assert launcher.wait(120) == -9
    wait_until(lambda: not processes_of("run of a forking launcher"), "the job to end")


@pytest.fixture(scope="module")
def nodes_to_lose(cluster: RayCluster) -> dict[str, Machine]:
    """One for each way to lose it, started together: it takes them seconds to join."""
    nodes = {how: cluster.add_node({how: 1}) for how in ("cut", "raylet killed")}
    wait_for_nodes(cluster, nodes.values())
    return nodes


@pytest.mark.parametrize("how", ["cut", "raylet killed"])
def test_a_lost_node_is_noticed_long_before_ray_does(
    cluster: RayCluster, nodes_to_lose: Mapping[str, Machine], how: str
) -> None:
    """And a job that is cut off from its driver ends, although Ray would let it live."""
    machine = nodes_to_lose[how]
    run = f"run on a node {how}"
    with made(cluster, resources={how: "1"}, silence_s="3") as engine:
        [id] = engine.submit(spec(SLEEP), 1, run, "a")
        wait_until(lambda: "up" in engine.logs(id), "the job to run")
        if how == "cut":
            cluster.lab.cut(machine)
        else:
            machine.run([sys.executable, "-c", _KILL_RAYLET])
        wait_until(lambda: states(engine, [id]) == [JobState.LOST], "the loss to be noticed")
        assert engine.poll([id])[id].reason
        assert engine.find(run) == []
        wait_until(lambda: not processes_of(run), "the job on the lost node to end")


def test_a_cluster_that_does_not_answer_is_said_within_a_bound(cluster: RayCluster) -> None:
    engine = engine_of(cluster, address="10.77.0.99:6379", connect_s=2)
    # Which of the two bounds ends first, depends on how soon the kernel gives the host up.
    words = r"Ray at 10\.77\.0\.99:6379: (.*is the address right.*token|no Ray answers .*Set the option address)"
    with pytest.raises(EngineError, match=words):
        engine.submit(spec(SLEEP), 1, "run", "a")
    [finding] = engine.check()
    assert not finding.ok
    assert re.search(words, finding.detail)
    engine.close()
