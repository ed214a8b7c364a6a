"""`ropewalk submit` over a real sshd: the launcher runs on one of the hosts, and goes on when the connection ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ropewalk.engines.engine import JobSpec, JobState
from ropewalk.engines.ssh import SshEngine
from ropewalk.errors import EngineError
from ropewalk.testing.engine_under_test import new_run
from tests.cli.command import ropewalk
from tests.lab.ssh import SshHosts
from tests.patience import PATIENCE_S

SCRIPT = """
import os, platform, sys, time
import ropewalk as rw
from beside import square
def where(x): return platform.node()
if __name__ == "__main__":
    print("up", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    with rw.Pool(2) as pool:
        print("sum", sum(pool.map(square, range(10))), "of", platform.node(), flush=True)
        print(*sorted(set(pool.map(where, range(20), chunksize=1))), flush=True)
    sys.exit(3)
"""
SAVES = """
import sys, time
print("up", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("saved", flush=True)
    sys.exit(5)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def words(ssh: SshHosts, **more: object) -> list[str]:
    options = {**ssh.options, "launcher_config_file": ssh.inner_config, **more}
    given = {name: json.dumps(value) if isinstance(value, list) else value for name, value in options.items()}
    return ["--engine", "ssh", *(f"-o{name}={value}" for name, value in given.items())]


class Laptop:
    """The machine from which runs are submitted, with its state folder; only the hosts' sshd leads there."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self._state = {"XDG_STATE_HOME": str(folder / "state")}
        (folder / "train.py").write_text(script)
        (folder / "beside.py").write_text("def square(x): return x * x\n")
        (folder / "ropewalk.toml").touch()

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ropewalk(*arguments, folder=self.folder, **self._state)

    def submit(self, *arguments: str) -> str:
        done = self("submit", "train.py", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait_for(self, what: str, run: str) -> None:
        due = time.monotonic() + PATIENCE_S
        while what not in (said := self("logs", run)).stdout:
            assert time.monotonic() < due, (said, self("ps", "--all").stdout)
            time.sleep(0.2)


def left_on(hosts: SshHosts) -> list[str]:
    return [str(path) for path in (hosts.folder / "state").glob("ropewalk/*/*")]


def test_a_submitted_script_runs_on_the_hosts_and_attach_takes_its_output_and_exit_code(
    ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    laptop = Laptop(tmp_path, SCRIPT)
    go = ssh_hosts.folder / "go"
    second = ssh_hosts.hosts[1].ip
    run = laptop.submit(*words(ssh_hosts, launcher=second), "--workers", "2", "--", str(go))
    laptop.wait_for("up", run)
    (listed,) = json.loads(laptop("ps", "--json").stdout)["submitted"]
    assert (listed["id"], listed["state"], listed["engine"]) == (run, "running", "ssh"), "no connection is open"
    go.touch()
    attached = laptop("attach", run)
    assert attached.returncode == 3, attached.stdout + attached.stderr
    assert "sum 285 of n2" in attached.stdout, "its code came as a bundle"
    assert left_on(ssh_hosts) == [], "its end is known here"
    assert laptop("logs", run, "-n", "2").stdout == "".join(attached.stdout.splitlines(keepends=True)[-2:])


def test_a_submitted_script_may_save_when_it_is_stopped(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    laptop = Laptop(tmp_path, SAVES)
    run = laptop.submit(*words(ssh_hosts))
    laptop.wait_for("up", run)
    stopped = laptop("stop", run)
    assert f"{run} ended with exit code 5" in stopped.stdout, stopped.stdout + stopped.stderr
    assert laptop("attach", run).returncode == 5
    assert laptop("logs", run).stdout.endswith("\nsaved\n"), "kept here"
    assert left_on(ssh_hosts) == []


def test_one_that_does_not_stop_is_killed_with_all_that_it_has_started(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    laptop = Laptop(tmp_path, STUBBORN)
    run = laptop.submit(*words(ssh_hosts))
    laptop.wait_for("up", run)
    stopped = laptop("stop", run, "--grace", "0.3", "--json")
    assert json.loads(stopped.stdout)["state"] == "ended"
    assert "stopped" in json.loads(stopped.stdout)["reason"]
    assert left_on(ssh_hosts) == []


def test_a_launcher_that_would_reach_no_host_is_refused_with_what_is_missing(
    ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    laptop = Laptop(tmp_path, SCRIPT)
    nothing = ssh_hosts.folder / "no_keys"
    nothing.write_text(f"IdentityFile none\nUserKnownHostsFile {ssh_hosts.folder}/known_hosts\n")
    done = laptop("submit", "train.py", *words(ssh_hosts, launcher_config_file=nothing))
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and "Traceback" not in said, said
    assert f"a launcher on {ssh_hosts.hosts[0].ip} could use none of the hosts" in said
    assert "permission denied" in said and "install a key there" in said
    assert list(tmp_path.glob("state/ropewalk/runs/*")) == [] == left_on(ssh_hosts)


def test_hosts_that_the_launcher_cannot_use_are_told_and_others_are_used(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    laptop = Laptop(tmp_path, "print('done')")
    nobody = f"{ssh_hosts.hosts[0].ip}:9"
    hosts = [ssh_hosts.hosts[0].ip, nobody]
    done = laptop("submit", "train.py", *words(ssh_hosts, hosts=hosts))
    assert done.returncode == 0, done.stderr
    assert f"will go on without the host {nobody}" in " ".join(done.stderr.split())
    assert laptop("attach", done.stdout.strip()).returncode == 0


def test_a_run_whose_host_never_returns_is_told_so_and_can_be_forgotten(
    own_ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    laptop = Laptop(tmp_path, SAVES)
    host = own_ssh_hosts.hosts[0]
    run = laptop.submit(*words(own_ssh_hosts, launcher=host.ip, connect_timeout=1))
    laptop.wait_for("up", run)
    own_ssh_hosts.lab.plug(host)
    stopped = laptop("stop", run)
    assert stopped.returncode == 1 and f"{run} unknown" in stopped.stdout and host.ip in stopped.stdout, stopped
    assert f"ropewalk stop {run} --forget" in stopped.stderr
    assert laptop("stop", run, "--forget").returncode == 0
    assert list(tmp_path.glob("state/ropewalk/runs/*")) == []


def kept(code: str) -> JobSpec:
    return JobSpec([sys.executable, "-c", code], outlives=True)


def test_a_request_that_is_repeated_by_another_process_is_one_job(ssh_hosts: SshHosts) -> None:
    run, mark = new_run(), ssh_hosts.folder / "starts"
    spec = kept(f"open({str(mark)!r}, 'a').write('x'); import time; time.sleep(600)")
    engines = [SshEngine(ssh_hosts.options) for _ in range(2)]
    try:
        ids = {engine.submit(spec, 1, run, "launcher")[0] for engine in engines}
        assert len(ids) == 1 and set(engines[0].find(run)) == ids == set(engines[1].runs()[run])
        (id,) = ids
        due = time.monotonic() + PATIENCE_S
        while not mark.exists():
            assert time.monotonic() < due
            time.sleep(0.02)
        assert engines[1].poll([id])[id].state is JobState.RUNNING
        engines[1].cancel([id])
        assert engines[0].poll([id])[id].state is JobState.LOST and engines[0].find(run) == []
        assert mark.read_text() == "x"
    finally:
        for engine in engines:
            engine.close()


def test_a_launcher_whose_host_cannot_be_reached_is_unknown_and_not_lost(own_ssh_hosts: SshHosts) -> None:
    options = {**own_ssh_hosts.options, "connect_timeout": 1, "server_alive_interval": 1, "server_alive_count_max": 1}
    engine = SshEngine(options)
    try:
        (id,) = engine.submit(kept("import time; time.sleep(600)"), 1, new_run(), "launcher")
        own_ssh_hosts.lab.cut(own_ssh_hosts.hosts[0])
        due = time.monotonic() + PATIENCE_S
        with pytest.raises(EngineError, match=own_ssh_hosts.hosts[0].ip):  # noqa: PT012 - until it is noticed
            while time.monotonic() < due:
                engine.poll([id])
        own_ssh_hosts.lab.heal(own_ssh_hosts.hosts[0])
        assert engine.poll([id])[id].state is JobState.RUNNING, "it goes on while nobody can ask"
        engine.cancel([id])
    finally:
        engine.close()
