"""The engine for mpiexec passes the public suite, and says what it cannot do."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ropewalk.engines.engine import Engine, JobSpec, JobState, Reach
from ropewalk.engines.mpi import MpiEngine
from ropewalk.engines.mpi_rank import rank_of
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError, SettingsError
from ropewalk.testing.engine_conformance import EngineConformance
from ropewalk.testing.engine_under_test import processes_of
from tests.lab import require
from tests.lab.ssh import SshHosts
from tests.patience import wait_until

pytestmark = pytest.mark.lab


@pytest.fixture(autouse=True)
def _mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    # The one of the wheel `mpich` lies beside the interpreter, which need not be on the PATH.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    require("mpiexec")


@pytest.mark.usefixtures("_folder")
class TestMpi(EngineConformance):
    engine_name = "mpi"
    num_jobs = 16
    folder: Path

    @pytest.fixture
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "jobs"

    def engine_options(self) -> Mapping[str, object]:
        return {"folder": str(self.folder)}

    def lose(self, engine: Engine, id: str) -> None:
        _end_job(self.folder, id)

    def leftovers(self) -> list[str]:
        return [str(path) for path in self.folder.glob("*")]


def _end_job(folder: Path, id: str) -> None:
    """Kill the program that writes to the log of a job."""
    run, request, rank = id.split(".")
    log = folder / f"ropewalk-{run}" / request / f"{rank}.log"
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "fd" / "1").readlink() == log:
                os.kill(int(folder.name), signal.SIGKILL)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[MpiEngine]:
    engine = MpiEngine({"folder": str(tmp_path / "jobs")})
    yield engine
    engine.cancel(engine.find("f00d"))
    engine.close()
    assert list((tmp_path / "jobs").glob("*")) == []


def python(code: str, **facts: object) -> JobSpec:
    return JobSpec(command=[sys.executable, "-c", code], **facts)  # pyright: ignore[reportArgumentType]


def test_each_rank_gets_its_own_credentials_and_knows_nothing_of_mpi(engine: MpiEngine) -> None:
    code = "import os, sys; print(sys.stdin.read(), [name for name in os.environ if name.startswith(('PMI', 'HYD'))])"
    ids = engine.submit(python(code, stdin=b"secret"), 3, "f00d", "a")
    wait_until(lambda: all(status.state is JobState.ENDED for status in engine.poll(ids).values()))
    assert [engine.logs(id) for id in ids] == ["secret []\n"] * 3


def test_a_rank_that_fails_or_is_cancelled_leaves_the_others_alone(engine: MpiEngine) -> None:
    code = "import os, time; print('up', flush=True); time.sleep(600)"
    ids = engine.submit(python(code), 3, "f00d", "a")
    wait_until(lambda: all("up" in engine.logs(id) for id in ids))
    _end_job(engine._folder.path, ids[0])
    engine.cancel([ids[1]])
    wait_until(lambda: engine.poll(ids)[ids[0]].state is JobState.ENDED)
    states = engine.poll(ids)
    assert [status.exit_code for status in states.values()] == [-9, -9, None]
    assert [status.reason for status in states.values()] == ["ended by signal 9", "cancelled", ""]
    assert states[ids[2]].state is JobState.RUNNING


def test_an_mpiexec_that_ends_takes_its_ranks_with_it_and_says_so(engine: MpiEngine) -> None:
    ids = engine.submit(python("import time; print('up', flush=True); time.sleep(600)"), 2, "f00d", "a")
    wait_until(lambda: all("up" in engine.logs(id) for id in ids))
    next(iter(engine._started.values())).terminate()
    wait_until(lambda: all(status.state is JobState.ENDED for status in engine.poll(ids).values()))
    wait_until(lambda: not processes_of("f00d"))


def test_an_mpiexec_that_cannot_start_its_ranks_says_why(tmp_path: Path) -> None:
    engine = MpiEngine({"folder": str(tmp_path / "jobs"), "python": "/no/such/python"})
    [id] = engine.submit(python("pass"), 1, "f00d", "a")
    wait_until(lambda: engine.poll([id])[id].state is JobState.ENDED)
    status = engine.poll([id])[id]
    assert status.exit_code is None
    assert "mpiexec ended, and with it all of its ranks" in status.reason and "/no/such/python" in status.reason
    engine.close()


def test_signals_for_a_rank_reach_its_program(engine: MpiEngine) -> None:
    code = (
        "import signal, time\n"
        "signal.signal(15, lambda *_: print('heard', flush=True))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    [id] = engine.submit(python(code), 1, "f00d", "a")
    wait_until(lambda: "up" in engine.logs(id))
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"ropewalk.engines.mpi_rank" in words and words[-2].startswith(os.fsencode(engine._folder.path)):
                os.kill(int(folder.name), signal.SIGTERM)
    wait_until(lambda: "heard" in engine.logs(id))


def test_without_mpiexec_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    engine = MpiEngine({"folder": str(tmp_path / "jobs"), "mpiexec": "mpiexec.none"})
    with pytest.raises(EngineError, match=r"no mpiexec.none on the PATH.*pip install mpich"):
        engine.submit(python("pass"), 1, "f00d", "a")
    assert list((tmp_path / "jobs").glob("*")) == []
    assert not engine.check()[0].ok


def test_a_check_starts_a_rank_and_says_what_runs_it(tmp_path: Path) -> None:
    rank, folder = MpiEngine({"folder": str(tmp_path / "jobs")}).check()
    assert (rank.what, rank.ok, folder.ok) == ("ranks", True, True) and f"started on {platform.node()};" in rank.detail
    for wrong in ({"python": "no-such-python"}, {"extra": "--no-such-flag"}):
        rank, _ = MpiEngine({"folder": str(tmp_path / "jobs"), **wrong}).check()
        assert not rank.ok and wrong.popitem()[1] in rank.detail, "an mpiexec on the PATH is not enough"


def test_hosts_lead_over_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = MpiEngine({"folder": str(tmp_path)})
    there = MpiEngine({"folder": str(tmp_path), "hosts": "10.0.0.1:4,10.0.0.2"})
    assert (here.reach, here.hosts()) == (Reach.HERE, [])
    assert (there.reach, there.hosts()) == (Reach.NETWORK, ["10.0.0.1", "10.0.0.2"])
    assert f"-machinefile {tmp_path}" in there.render(python("pass"))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    assert MpiEngine({"folder": str(tmp_path)}).reach is Reach.NETWORK


def test_how_many_processes_a_rank_hosts_can_be_said(tmp_path: Path) -> None:
    engine = MpiEngine({"folder": str(tmp_path), "processes_per_rank": "7"})
    assert engine.per_job(Resources(cpus=99)) == 7
    with pytest.raises(EngineError, match="processes_per_rank"):
        MpiEngine({"folder": str(tmp_path)}).per_job(Resources(cpus=10_000))


@pytest.mark.parametrize(
    "options", [{"hosts": "a b"}, {"hosts": ["-x"]}, {"hosts": ["a\nb"]}, {"processes_per_rank": 0}]
)
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        MpiEngine(options)


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"PMI_RANK": "3"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "0"}, 0),
        ({"SLURM_PROCID": "2", "PMI_RANK": "5"}, 5),
        ({"PMI_RANK": "x"}, None),
        ({}, None),
    ],
)
def test_each_mpi_tells_ranks_in_its_own_way(environ: dict[str, str], rank: int | None) -> None:
    assert rank_of(environ) == rank


_OVER_HOSTS = """
import json, sys, time
from ropewalk.engines.engine import JobSpec, JobState
from ropewalk.engines.mpi import MpiEngine
engine = MpiEngine(json.loads(sys.argv[1]))
code = "import platform, sys, time; print(platform.node(), sys.stdin.read(), flush=True); time.sleep(600)"
ids = engine.submit(JobSpec([sys.executable, "-c", code], stdin=b"secret"), 3, "f00d", "a")
while not all(engine.logs(id) for id in ids) and engine.poll(ids)[ids[0]].state is JobState.RUNNING:
    time.sleep(0.05)
print(json.dumps([engine.logs(id) for id in ids]), engine.poll(ids)[ids[0]].reason)
engine.cancel(ids)
print([status.exit_code for status in engine.poll(ids).values()])
engine.close()
"""


def test_ranks_run_on_the_hosts_that_are_named(ssh_hosts: SshHosts) -> None:
    wrapper = ssh_hosts.folder / "ssh-to-hosts"
    wrapper.write_text(f'#!/bin/sh\nexec ssh -F {ssh_hosts.inner_config} "$@"\n')
    wrapper.chmod(0o755)
    # Without -localhost the hosts would call back a host name, which means nothing to them.
    extra = ["-launcher", "ssh", "-launcher-exec", str(wrapper), "-localhost", ssh_hosts.launcher.ip]
    options = {
        "folder": str(ssh_hosts.folder / "mpi"),
        "hosts": [machine.ip for machine in ssh_hosts.hosts],
        "extra": extra,
    }
    done = ssh_hosts.launcher.run([sys.executable, "-c", _OVER_HOSTS, json.dumps(options)], timeout=200)
    expected = json.dumps([f"{machine.name} secret\n" for machine in ssh_hosts.hosts])
    assert done.stdout.splitlines() == [f"{expected} ", "[-9, -9, -9]"], done
    assert list((ssh_hosts.folder / "mpi").glob("*")) == []
