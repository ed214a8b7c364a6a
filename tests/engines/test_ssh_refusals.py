"""What stands in the way of the ssh engine is said with the next step: real failures of real programs, in the lab."""

from __future__ import annotations

import contextlib
import json
import random
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines import ssh_connection
from ropewalk.engines.engine import EngineFinding, JobSpec
from ropewalk.engines.resources import Resources
from ropewalk.engines.ssh import SshEngine
from ropewalk.errors import EngineError
from ropewalk.testing.engine_under_test import new_run
from tests.engines.test_ssh_faults import engine_of
from tests.lab.machine import Machine
from tests.lab.ssh import SshHosts

#: Runs on the launcher's machine, so that ssh itself meets the network.
TRY = """
import json, sys
from ropewalk.engines.engine import JobSpec
from ropewalk.engines.ssh import SshEngine
from ropewalk.errors import EngineError
engine = SshEngine(json.loads(sys.argv[1]))
try:
    engine.submit(JobSpec(["true"]), 1, "run", "a")
except EngineError as error:
    print(error)
finally:
    engine.close()
"""


def refusal_inside(ssh: SshHosts, **options: object) -> str:
    """What an engine on the launcher's machine says to a job."""
    options = {**ssh.inner_options, "connect_timeout": 1, **options}
    return ssh.launcher.run([sys.executable, "-c", TRY, json.dumps(options)]).stdout


def refusal(ssh: SshHosts, **options: object) -> str:
    with engine_of({**ssh.options, **options}) as engine, pytest.raises(EngineError) as refused:
        engine.submit(JobSpec(["true"]), 1, new_run(), "a")
    return str(refused.value)


def findings(hosts: SshHosts, **options: object) -> dict[str, EngineFinding]:
    with engine_of({**hosts.options, **options}) as engine:
        return {finding.what: finding for finding in engine.check()}


@pytest.fixture
def pretend_python(ssh_hosts: SshHosts) -> Callable[[str], str]:
    """Makes an interpreter that does something before it becomes the keeper; returns its path on the hosts."""

    def make(before: str) -> str:
        path, code = ssh_hosts.folder / "pretend-python", ssh_hosts.folder / "pretend-python.py"
        code.write_text(f"import sys, time\n{before}\nexec(sys.argv[2], {{'__name__': '__main__'}})\n")
        path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(code)])} "$@"\n')
        path.chmod(0o755)
        return str(path)

    return make


# --- the way to the host ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "meaning", "remedy"),
    [
        ("10.77.0.99", "it cannot be reached", "take it off `hosts`"),
        ("n1:2222", "nobody listens at port 2222", "set `port`"),
        ("no-such-host.invalid", "its name does not resolve", "use its IP address"),
    ],
)
def test_a_host_that_does_not_answer_is_an_error(ssh_hosts: SshHosts, entry: str, meaning: str, remedy: str) -> None:
    said = refusal_inside(ssh_hosts, hosts=[entry])
    assert entry in said and meaning in said and remedy in said, said


def test_one_wrong_host_among_good_ones_is_passed_over_and_named_once(
    ssh_hosts: SshHosts, caplog: pytest.LogCaptureFixture
) -> None:
    # One machine of a lab that was switched off ended every run on the others.
    hosts = ssh_hosts.options["hosts"]
    assert isinstance(hosts, list)
    good, wrong = str(hosts[0]), "127.0.0.1:1"
    with engine_of({**ssh_hosts.options, "hosts": [wrong, good], "connect_timeout": 1}) as engine:
        assert engine.per_job(Resources()) >= 1
        run = new_run()
        ids = engine.submit(JobSpec(["sleep", "60"]), 2, run, "a")
        assert [id.rpartition("/")[0] for id in ids] == [good, good]
        engine.cancel(ids)
    (warning,) = caplog.messages
    assert f"continuing without the host {wrong}" in warning and "nobody listens at port 1" in warning


def test_wrong_hosts_only_are_an_error_that_names_all(ssh_hosts: SshHosts) -> None:
    said = refusal_inside(ssh_hosts, hosts=["n1:2222", "n2:2222"])
    assert "n1:2222" in said and "n2:2222" in said


def test_an_engine_in_the_lab_reaches_hosts_by_name(ssh_hosts: SshHosts) -> None:
    assert refusal_inside(ssh_hosts, hosts=["root@n1:22"]) == ""


def test_a_key_that_the_host_does_not_know_is_an_error(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    config = tmp_path / "config"
    config.write_text(ssh_hosts.config.read_text().replace(str(ssh_hosts.folder / "client_key"), str(tmp_path / "key")))
    said = refusal(ssh_hosts, config_file=str(config))
    assert "permission denied" in said and "identity_file" in said and "ssh-copy-id" in said, said
    said = refusal(ssh_hosts, config_file=str(config), user="nobody", port=22, identity_file=str(tmp_path / "key"))
    assert f"`ssh -F {config} -i {tmp_path}/key -p 22 nobody@{ssh_hosts.hosts[0].ip}`" in said, "a line to try by hand"


@pytest.mark.parametrize(
    ("known", "meaning", "remedy"),
    [
        ("", "host key is not known here", "accept it once with `ssh"),
        ("* {other}", "not the one that is known", "known_hosts -R 10.77.0.2`"),
    ],
    ids=["unknown", "changed"],
)
def test_a_host_key_that_is_not_the_known_one_is_an_error(
    ssh_hosts: SshHosts, tmp_path: Path, known: str, meaning: str, remedy: str
) -> None:
    other = (ssh_hosts.folder / "client_key.pub").read_text()
    (tmp_path / "known_hosts").write_text(known.format(other=other))
    config = tmp_path / "config"
    config.write_text(
        ssh_hosts.config.read_text()
        .replace(str(ssh_hosts.folder / "known_hosts"), str(tmp_path / "known_hosts"))
        .replace("StrictHostKeyChecking yes\n", "")  # as users have it: to be asked, which BatchMode does not do
    )
    said = refusal(ssh_hosts, config_file=str(config))
    assert meaning in said and remedy in said, said


def test_no_ssh_on_this_machine_is_an_error(ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install the client of OpenSSH" in refusal(ssh_hosts)
    assert not findings(ssh_hosts)["ssh"].ok


def test_a_server_with_too_many_callers_is_tried_again(
    own_ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`MaxStartups`, as where many hosts are reached through one: it hangs up on more callers than that."""
    machine = own_ssh_hosts.add(MaxStartups="2:100:2")
    options = {"hosts": [machine.ip], "connect_timeout": 5}
    callers: list[socket.socket] = []

    def leave(_least: float = 0, _most: float = 0) -> float:
        """They leave when the first attempt has failed and a pause is chosen."""
        while callers:
            callers.pop().close()
        return 1.0

    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(leave)
        while len(callers) < 2:  # one that asked whether sshd is up may still be counted
            callers.append(own_ssh_hosts.launcher.connect(machine.ip, 22))
            if callers[-1].recv(4) != b"SSH-":
                callers.pop().close()
        with monkeypatch.context() as once:
            once.setattr(ssh_connection, "_PAUSES_S", ())
            said = refusal(own_ssh_hosts, **options)
            assert "hung up before it asked for a key" in said and "`MaxStartups`" in said
        monkeypatch.setattr(random, "uniform", leave)
        with engine_of({**own_ssh_hosts.options, **options}) as engine:
            assert engine.submit(JobSpec(["sleep", "600"]), 1, new_run(), "a")
        assert not callers, "it got in at the first attempt"


# --- the login shell there --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "lines", "meaning"),
    [
        (
            "/bin/bash",
            "exec /bin/dash",
            "(~/.bashrc and the like), or a `ForceCommand` of sshd or `command=` of our key ",
        ),
        ("/bin/bash", "printf 'Password: '; read line", "It said: Password:"),
        ("/bin/bash", "exit 0", "ended without running"),
        ("/usr/sbin/nologin", "", "This account is currently not available"),
    ],
    ids=["another program", "waits for input", "ends", "no shell"],
)
def test_a_login_shell_that_runs_no_command_is_an_error_that_says_where_to_look(
    own_ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch, shell: str, lines: str, meaning: str
) -> None:
    monkeypatch.setattr(ssh_connection, "_START_S", 2.0)
    machine = own_ssh_hosts.hosts[0]
    (own_ssh_hosts.folder / ".bashrc").write_text(f"{lines}\n")
    users = own_ssh_hosts.folder / "passwd"
    users.write_text(f"root:x:0:0:root:{own_ssh_hosts.folder}:{shell}\nsshd:x:100:65534::/run/sshd:/bin/false\n")
    machine.run(["mount", "--bind", users, "/etc/passwd"])
    said = refusal(own_ssh_hosts, hosts=[machine.ip])
    assert machine.ip in said and meaning in said and f" {machine.ip}" in said.partition("try `ssh")[2], said


@pytest.mark.parametrize(
    ("command", "meaning"),
    [("/bin/cat", "may wait for input or start another program"), ("/bin/true", "ended without")],
)
def test_a_forced_command_that_runs_no_other_is_named_as_a_cause(
    own_ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch, command: str, meaning: str
) -> None:
    # Both looked for the cause in ~/.bashrc alone.
    monkeypatch.setattr(ssh_connection, "_START_S", 2.0)
    machine = own_ssh_hosts.add(ForceCommand=command)
    said = refusal(own_ssh_hosts, hosts=[machine.ip])
    assert "a `ForceCommand` of sshd or `command=` of our key there" in said and meaning in said


# --- Python there -----------------------------------------------------------------------------------------------------


def test_a_missing_python_is_an_error(ssh_hosts: SshHosts) -> None:
    said = refusal(ssh_hosts, python="/opt/none/bin/python")
    assert "no Python at /opt/none/bin/python on 10.77.0.2" in said and "set `python`" in said


def test_a_python_of_another_minor_version_is_an_error(ssh_hosts: SshHosts, pretend_python: Any) -> None:
    said = refusal(ssh_hosts, python=pretend_python("sys.version_info = (3, 9, 1)"))
    ours = "{}.{}".format(*sys.version_info[:2])
    assert "is Python 3.9" in said and f"runs {ours}" in said and "Set `python`" in said


def test_a_python_that_breaks_is_an_error_in_its_own_words(ssh_hosts: SshHosts, pretend_python: Any) -> None:
    assert "no such thing" in refusal(ssh_hosts, python=pretend_python("sys.exit('no such thing')"))


@pytest.mark.parametrize("end", ["\\n", ""], ids=["lines", "no end of line"])
def test_a_shell_that_greets_is_no_harm(ssh_hosts: SshHosts, pretend_python: Any, end: str) -> None:
    # A greeting such as `printf 'user> '` hid the keeper's first line, which was waited for until the timeout.
    greeting = f"print('Welcome to the cluster!\\n{{\"news\": 1}}', end='{end}', flush=True)"
    with engine_of({**ssh_hosts.options, "python": pretend_python(greeting)}) as engine:
        assert engine.submit(JobSpec(["true"]), 1, new_run(), "a")


def test_a_host_that_babbles_is_cut_off(ssh_hosts: SshHosts, pretend_python: Any) -> None:
    hello = "print('ropewalk-keeper on python %d.%d' % sys.version_info[:2], flush=True)"
    said = refusal(ssh_hosts, python=pretend_python(f"{hello}\nprint('[1]', flush=True)\nsys.stdin.read()"))
    assert "sends what no keeper sends" in said and "[1]" in said


# --- the host itself --------------------------------------------------------------------------------------------------


@pytest.fixture
def full_host(ssh_hosts: SshHosts) -> Iterator[Machine]:
    machine = ssh_hosts.hosts[0]
    machine.run(["mount", "-o", "remount,size=256k", "/tmp"])
    machine.run(["dd", "if=/dev/zero", "of=/tmp/all", "bs=4k"], check=False)
    yield machine
    machine.run(["rm", "/tmp/all"])
    machine.run(["mount", "-o", "remount,size=50%", "/tmp"])


def test_a_full_disk_is_an_error_and_a_finding(ssh_hosts: SshHosts, full_host: Machine) -> None:
    said = refusal(ssh_hosts, hosts=[full_host.ip])
    assert full_host.ip in said and "the disk of /tmp is full (0 KiB free)" in said and "make room" in said
    found = findings(ssh_hosts)[f"space in /tmp on {full_host.ip}"]
    assert not found.ok and "0 MiB free" in found.detail


def test_a_full_host_among_good_ones_is_passed_over_and_named_once(
    ssh_hosts: SshHosts, full_host: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    # One of many hosts on which somebody's files filled /tmp ended every run.
    with engine_of(ssh_hosts.options) as engine:
        for request in ("a", "b"):
            ids = engine.submit(JobSpec(["sleep", "600"]), 3, new_run(), request)
            assert len(ids) == 3 and not [id for id in ids if id.startswith(full_host.ip)]
    (warning,) = caplog.messages
    assert f"continuing without the host {full_host.ip}" in warning and "the disk of /tmp is full" in warning


def test_a_clock_an_hour_ahead_is_a_finding(ssh_hosts: SshHosts, pretend_python: Any) -> None:
    ahead = pretend_python("real = time.time; time.time = lambda: real() + 3600")
    found = findings(ssh_hosts, python=ahead)["clock of 10.77.0.2"]
    assert not found.ok and "s ahead of ours" in found.detail and "set-ntp" in found.detail
    assert findings(ssh_hosts)["clock of 10.77.0.2"].ok


def test_a_whole_host_has_only_good_findings(ssh_hosts: SshHosts) -> None:
    bad = [finding for finding in findings(ssh_hosts).values() if not finding.ok]
    assert bad == []


def test_a_host_without_ropewalk_is_a_finding(ssh_hosts: SshHosts, pretend_python: Any) -> None:
    none = "def version(name): raise it.PackageNotFoundError\nit.version = version"
    bare = pretend_python(f"import importlib.metadata as it\n{none}")
    found = findings(ssh_hosts, python=bare)["Python on 10.77.0.2"]
    assert not found.ok and "no Ropewalk" in found.detail and "pip install ropewalk==" in found.detail


@pytest.mark.parametrize("setting", [{"AllowStreamLocalForwarding": "no"}, {"DisableForwarding": "yes"}], ids=str)
def test_a_server_that_forwards_no_sockets_is_an_error_at_the_first_door(
    own_ssh_hosts: SshHosts, setting: dict[str, str]
) -> None:
    machine = own_ssh_hosts.add(**setting)
    with engine_of({**own_ssh_hosts.options, "hosts": [machine.ip]}) as engine:
        spec = JobSpec([sys.executable, "-c", "import time; time.sleep(600)"], door=True)
        id = engine.submit(spec, 1, new_run(), "a")[0]
        with pytest.raises(EngineError, match="AllowStreamLocalForwarding yes") as refused:
            engine.door(id)
        assert machine.ip in str(refused.value) and "open failed" in str(refused.value)
        assert not {finding.what: finding for finding in engine.check()}[f"doors of {machine.ip}"].ok


def test_a_host_in_a_list_of_one_that_is_lost_is_tried_again(own_ssh_hosts: SshHosts) -> None:
    options = {**own_ssh_hosts.options, "hosts": [own_ssh_hosts.hosts[0].ip]}
    with engine_of(options) as engine:
        first = engine.submit(JobSpec(["sleep", "600"]), 1, new_run(), "a")[0]
        assert isinstance(engine, SshEngine)
        engine._jobs[first].connection._kill()
        engine._jobs[first].connection.wait_for_end(first, 5)
        assert engine.submit(JobSpec(["sleep", "600"]), 1, new_run(), "b")
