"""No job outlives its launcher, its ssh or its cable; lost hosts are passed over, and fenced when they come back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from ropewalk.engines.engine import JobSpec, JobState
from ropewalk.engines.resources import Resources
from ropewalk.engines.ssh import SshEngine
from ropewalk.errors import EngineError
from ropewalk.testing.engine_under_test import command_line, new_run, processes_of
from tests.lab.machine import Machine
from tests.lab.ssh import SshHosts
from tests.patience import wait_until

#: The job, a child of it in a session of its own, and one that hides from every mark.
FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, '-c', 'import time; time.sleep(600)']
subprocess.Popen(sleep, start_new_session=True)
hidden = subprocess.Popen(sleep, start_new_session=True, env={})
print('up', hidden.pid, flush=True)
time.sleep(600)
"""
LAUNCHER = """
import json, sys, time
from ropewalk.engines.engine import JobSpec
from ropewalk.engines.ssh import SshEngine
asked = json.loads(sys.argv[1])
engine = SshEngine(asked["options"])
ids = engine.submit(JobSpec([sys.executable, "-c", asked["code"]]), 2, asked["run"], "a")
while not all("up" in engine.logs(id) for id in ids):
    time.sleep(0.02)
print(asked["run"], flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def engine_of(options: dict[str, object]) -> Generator[SshEngine]:
    engine = SshEngine(options)
    try:
        yield engine
    finally:
        for ids in list(engine._requests.values()):
            engine.cancel(ids)
        engine.close()


def start_family(engine: SshEngine, run: str, count: int = 1) -> list[str]:
    ids = engine.submit(JobSpec([sys.executable, "-c", FAMILY]), count, run, str(time.monotonic()))
    wait_until(lambda: all("up" in engine.logs(id) for id in ids), "the jobs to be up")
    assert len(processes_of(run)) == 2 * count
    return ids


def sleepers(machine: Machine) -> list[str]:
    """What the jobs have started on a machine and is still there, marked or not."""
    found = [command_line(folder) for folder in machine.path("/proc").glob("[0-9]*")]
    return [line for line in found if "time.sleep(600)" in line or "ropewalk-keeper" in line]


def of_jobs(machine: Machine) -> list[str]:
    return [line for line in sleepers(machine) if "ropewalk-keeper" not in line]


def connection_folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("rw-ssh-*"))


def ssh_processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "ssh"]


def hasty(hosts: SshHosts, **more: object) -> dict[str, object]:
    """A second's beat, so that silence is noticed in two."""
    return {**hosts.options, "server_alive_interval": 1, "server_alive_count_max": 2, "connect_timeout": 2, **more}


# --- who may die ------------------------------------------------------------------------------------------------------


def test_nothing_outlives_a_killed_launcher(ssh_hosts: SshHosts) -> None:
    asked = json.dumps({"options": ssh_hosts.options, "run": new_run(), "code": FAMILY})
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, asked], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        run = launcher.stdout.readline().strip()
        assert len(processes_of(run)) == 4 and len(connection_folders()) == 2
        launcher.kill()
    wait_until(lambda: not any(sleepers(machine) for machine in ssh_hosts.hosts), "the jobs to end")
    wait_until(lambda: not connection_folders(), "the folders of its connections to go")


def test_nothing_outlives_a_killed_ssh_and_its_jobs_are_lost_with_a_reason(ssh_hosts: SshHosts) -> None:
    with engine_of(ssh_hosts.options) as engine:
        run = new_run()
        id = start_family(engine, run)[0]
        for process in ssh_processes():
            process.kill()
        wait_until(lambda: not any(sleepers(machine) for machine in ssh_hosts.hosts), "the jobs to end")
        # The thread that reads from ssh may notice its end later than the host did.
        wait_until(lambda: engine.poll([id])[id].state is JobState.LOST, "the job to be lost")
        assert ssh_hosts.hosts[0].ip in engine.poll([id])[id].reason
        assert engine.find(run) == []
        with pytest.raises(EngineError, match=ssh_hosts.hosts[0].ip):
            engine._jobs[id].connection.ask("beat")
        again = start_family(engine, run)[0]
        assert not again.startswith(ssh_hosts.hosts[0].ip), "who was just lost is passed over"


def test_what_a_killed_keeper_leaves_is_found_and_ended_by_another_launcher(ssh_hosts: SshHosts) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    code = f"import subprocess, sys, time; {child}; print('up', flush=True); time.sleep(600)"
    run = new_run()
    with engine_of(ssh_hosts.options) as engine:
        id = engine.submit(JobSpec([sys.executable, "-c", code]), 1, run, "a")[0]
        wait_until(lambda: "up" in engine.logs(id), "the job to be up")
        ssh_hosts.hosts[0].run(["pkill", "-9", "-f", "ropewalk-keeper"])
        wait_until(lambda: engine.poll([id])[id].state is JobState.LOST, "the job to be lost")
        wait_until(lambda: len(processes_of(run)) == 1, "the first process of the job to die with the keeper")
    with engine_of(ssh_hosts.options) as another:
        assert another.runs() == {run: [id]} and another.find(run) == [id]
        assert another.poll([id])[id].state is JobState.RUNNING
        another.cancel([id])
        assert another.runs() == {} and processes_of(run) == []


def test_descendants_without_a_mark_end_with_their_job_and_no_other(ssh_hosts: SshHosts) -> None:
    with engine_of({**ssh_hosts.options, "hosts": [ssh_hosts.hosts[0].ip]}) as engine:
        ids = start_family(engine, new_run(), 2)
        engine.cancel(ids[:1])
        wait_until(lambda: len(of_jobs(ssh_hosts.hosts[0])) == 3, "the first family to end")
        assert engine.poll(ids)[ids[1]].state is JobState.RUNNING


def test_orphans_without_a_mark_end_with_the_last_job_of_their_host(ssh_hosts: SshHosts) -> None:
    orphan = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True, env={})"
    middle = f"import subprocess, sys; {orphan}"
    code = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {middle!r}]); print('up', flush=True)"
    with engine_of(ssh_hosts.options) as engine:
        id = engine.submit(JobSpec([sys.executable, "-c", f"{code}; time.sleep(600)"]), 1, new_run(), "a")[0]
        wait_until(lambda: "up" in engine.logs(id), "the job to be up")
        assert len(of_jobs(ssh_hosts.hosts[0])) == 2
        engine.cancel([id])
        assert of_jobs(ssh_hosts.hosts[0]) == []


# --- cables -----------------------------------------------------------------------------------------------------------


def test_a_cut_cable_ends_the_jobs_behind_it_and_the_host_is_passed_over(own_ssh_hosts: SshHosts) -> None:
    hosts = own_ssh_hosts
    with engine_of(hasty(hosts)) as engine:
        run = new_run()
        ids = start_family(engine, run, 3)
        hosts.lab.cut(hosts.hosts[0])
        lost = next(id for id in ids if id.startswith(hosts.hosts[0].ip))
        wait_until(lambda: "nothing heard" in engine.poll([lost])[lost].reason, "silence to be noticed")
        engine.cancel([lost])
        replacement = engine.submit(JobSpec([sys.executable, "-c", FAMILY]), 1, run, "replacement")[0]
        assert not replacement.startswith(hosts.hosts[0].ip)
        wait_until(lambda: engine.poll([lost])[lost].state is JobState.LOST, "the job to be lost")
        assert "10.77.0.2" in engine.poll([lost])[lost].reason
        wait_until(lambda: not sleepers(hosts.hosts[0]), "the cut host to end its jobs by itself")
        hosts.lab.heal(hosts.hosts[0])
        kept = [id for id in ids if id != lost]
        assert {status.state for status in engine.poll(kept).values()} == {JobState.RUNNING}
        assert sorted(engine.find(run)) == sorted([*kept, replacement])


def test_a_short_cut_is_survived(own_ssh_hosts: SshHosts) -> None:
    hosts = own_ssh_hosts
    with engine_of({**hasty(hosts), "server_alive_count_max": 8}) as engine:
        id = start_family(engine, new_run())[0]
        hosts.lab.cut(hosts.hosts[0])
        wait_until(lambda: "nothing heard" in engine.poll([id])[id].reason, "silence to be noticed")
        places = engine.submit(JobSpec(["sleep", "60"]), 4, new_run(), "a")
        assert {place.split("/")[0] for place in places} == {hosts.hosts[1].ip, hosts.hosts[2].ip}
        hosts.lab.heal(hosts.hosts[0])
        wait_until(lambda: not engine.poll([id])[id].reason, "the host to be heard again")
        assert engine.poll([id])[id].state is JobState.RUNNING
        assert "up" in engine.logs(id)


def test_a_plugged_host_costs_only_its_jobs(own_ssh_hosts: SshHosts) -> None:
    hosts = own_ssh_hosts
    with engine_of(hasty(hosts)) as engine:
        run = new_run()
        ids = start_family(engine, run, 3)
        hosts.lab.plug(hosts.hosts[0])
        wait_until(lambda: engine.poll(ids)[ids[0]].state is JobState.LOST, "the job to be lost")
        assert [engine.poll(ids)[id].state for id in ids[1:]] == [JobState.RUNNING, JobState.RUNNING]
        replacement = engine.submit(JobSpec([sys.executable, "-c", FAMILY]), 1, run, "replacement")[0]
        assert replacement.startswith((hosts.hosts[1].ip, hosts.hosts[2].ip))
        assert engine.per_job(Resources()) >= 1, "those that are left can be used"


def test_when_every_host_is_lost_that_is_an_error_which_names_them(own_ssh_hosts: SshHosts) -> None:
    hosts = own_ssh_hosts
    with engine_of(hasty(hosts)) as engine:
        ids = start_family(engine, new_run(), 3)
        for machine in hosts.hosts:
            hosts.lab.plug(machine)
        wait_until(lambda: {engine.poll([id])[id].state for id in ids} == {JobState.LOST}, "all jobs to be lost")
        with pytest.raises(EngineError) as refused:
            engine.submit(JobSpec(["true"]), 1, new_run(), "a")
        assert all(machine.ip in str(refused.value) for machine in hosts.hosts)


# --- limits and places ------------------------------------------------------------------------------------------------


def test_a_job_ends_at_its_time_limit_and_says_so(ssh_hosts: SshHosts) -> None:
    with engine_of(ssh_hosts.options) as engine:
        spec = JobSpec([sys.executable, "-c", FAMILY], time_limit_s=1)
        id = engine.submit(spec, 1, new_run(), "a")[0]
        wait_until(lambda: engine.poll([id])[id].state is JobState.ENDED, "the limit to end it")
        status = engine.poll([id])[id]
        assert status.exit_code == -signal.SIGKILL and "time limit" in status.reason


def test_jobs_are_spread_over_the_hosts_with_the_fewest(ssh_hosts: SshHosts) -> None:
    with engine_of(ssh_hosts.options) as engine:
        spec = JobSpec([sys.executable, "-c", "import time; time.sleep(600)"])
        ids = engine.submit(spec, 4, new_run(), "a")
        places = [id.split("/")[0] for id in ids]
        ips = [machine.ip for machine in ssh_hosts.hosts]
        assert places == [*ips, ips[0]]
        engine.cancel(ids[1:2])
        assert engine.submit(spec, 1, new_run(), "b")[0].split("/")[0] == ips[1]
        assert engine.most_jobs() == 3


def test_aliases_of_the_configuration_lead_to_hosts_whatever_they_have_for_people(
    ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host big\n HostName {ssh_hosts.hosts[0].ip}\n User root\n LocalForward {tmp_path}/forwarded /tmp/x\n"
        f" RemoteCommand tmux\n RequestTTY yes\n ControlMaster auto\n ControlPersist 1h\n ControlPath {tmp_path}/%C\n"
        f"Host *\n{ssh_hosts.config.read_text()}"
    )
    with engine_of({"hosts": "big", "config_file": str(config)}) as engine:
        id = start_family(engine, new_run())[0]
        assert id.startswith("big/") and sleepers(ssh_hosts.hosts[0])
        assert list(tmp_path.iterdir()) == [config], "its connection is our own"


def test_a_process_that_no_host_can_hold_is_an_error_with_what_there_is(ssh_hosts: SshHosts) -> None:
    with engine_of(ssh_hosts.options) as engine:
        assert engine.per_job(Resources(cpus=1)) == len(os.sched_getaffinity(0))
        with pytest.raises(EngineError, match=r"no host can hold .*memory.*10\.77\.0\.2 with \d+ CPUs, \d+ GPUs"):
            engine.per_job(Resources(memory="900Ti"))


def test_a_job_that_is_not_started_starts_no_other(ssh_hosts: SshHosts) -> None:
    """Words and variables with a zero byte reach the host's `execve`, and are refused there."""
    with engine_of(ssh_hosts.options) as engine:
        run = new_run()
        with pytest.raises(EngineError, match="null byte"):
            engine.submit(JobSpec([sys.executable, "-c", "a\0b"]), 3, run, "a")
        assert engine.find(run) == []


def test_the_environment_of_a_job_is_on_no_command_line(ssh_hosts: SshHosts) -> None:
    secret = os.urandom(16).hex()
    with engine_of(ssh_hosts.options) as engine:
        code = "import os, time; print(len(os.environ['TOKEN']), flush=True); time.sleep(600)"
        spec = JobSpec([sys.executable, "-c", code], environment={"TOKEN": secret}, stdin=secret.encode())
        id = engine.submit(spec, 1, new_run(), "a")[0]
        wait_until(lambda: "32" in engine.logs(id), "the job to be up")
        assert [line for folder in Path("/proc").glob("[0-9]*") if secret in (line := command_line(folder))] == []
