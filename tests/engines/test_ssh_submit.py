"""`ropewalk submit` and hosts behind a real sshd: refused with the way out, which works and outlives the connection."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.cli.command import ropewalk
from tests.lab.ssh import SshHosts

SCRIPT = """
import sys, time
import ropewalk as rw
def square(x): return x * x
if __name__ == "__main__":
    print("up", flush=True)
    sys.stdout.flush()
    while not __import__("os").path.exists("go"):
        time.sleep(0.05)
    with rw.Pool(2) as pool:
        print("sum", sum(pool.map(square, range(10))), flush=True)
    sys.exit(3)
"""


def test_the_engine_ssh_is_refused_with_the_way_out_and_leaves_nothing(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = [f"-o{name}={json.dumps(value)}" for name, value in ssh_hosts.options.items()]
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = ropewalk("submit", "train.py", "--engine", "ssh", *options, folder=tmp_path, **state)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "outlives this command; log in there and submit with --engine local" in " ".join(done.stderr.split())
    assert list(tmp_path.glob("state/ropewalk/runs/*")) == []


def test_a_run_that_was_submitted_on_a_host_goes_on_when_the_connection_ends(ssh_hosts: SshHosts) -> None:
    folder = ssh_hosts.folder / "submitted"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    variables = {"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def there(*words: str) -> subprocess.CompletedProcess[str]:
        """The command on the first host, over a connection of its own."""
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, "-m", "ropewalk"]
        line = f"cd {shlex.quote(str(folder))} && {shlex.join([*command, *words])}"
        argv = ["ssh", "-F", str(ssh_hosts.config), ssh_hosts.hosts[0].ip, line]
        return subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)

    submitted = there("submit", "train.py", "--engine", "local", "--workers", "2")
    assert submitted.returncode == 0, submitted.stderr
    run = submitted.stdout.strip()
    (listed,) = json.loads(there("ps", "--json").stdout)["submitted"]
    assert (listed["id"], listed["state"]) == (run, "running"), "its connection has ended"
    (folder / "go").touch()
    attached = there("attach", run)
    assert attached.returncode == 3, attached.stderr
    assert "sum 285" in attached.stdout
