"""What the ssh engine accepts as hosts and options, the command lines it makes of them, and the words for failures."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.resources import Resources
from ropewalk.engines.ssh import SshEngine
from ropewalk.engines.ssh_command import Host, SshOptions, connection, remote_line
from ropewalk.engines.ssh_failures import explain, no_forwarding, wrong_python
from ropewalk.errors import EngineError, SettingsError


@pytest.mark.parametrize(
    ("entry", "name", "user", "port"),
    [
        ("10.0.0.1", "10.0.0.1", "", None),
        ("ann.b@10.0.0.2:2222", "10.0.0.2", "ann.b", 2222),
        ("gpu-node_1.cluster", "gpu-node_1.cluster", "", None),
        ("fd00::2", "fd00::2", "", None),
        ("ann@[fe80::2%eth0]:22", "fe80::2%eth0", "ann", 22),
    ],
)
def test_hosts_are_written_as_ssh_users_write_them(entry: str, name: str, user: str, port: int | None) -> None:
    assert Host.parse(entry) == Host(entry, name, user, port)


@pytest.mark.parametrize(
    "entry",
    [
        "-oProxyCommand=id",
        "a@-b",
        "-a@b",
        "a b",
        "a\nb",
        "a;id",
        "$(id)",
        "`id`",
        "a|b",
        "a:0",
        "a:65536",
        "a@b@c",
        "a/b",
    ],
)
def test_what_ssh_or_a_shell_could_misread_is_no_host(entry: str) -> None:
    with pytest.raises(SettingsError, match="`hosts`"):
        SshEngine({"hosts": [entry]})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "`hosts` is empty"),
        ({"hosts": "n1,n2,n1"}, "'n1' is listed twice"),
        ({"hosts": "n1", "user": "-l"}, "`user` must be"),
        ({"hosts": "n1", "port": "70000"}, "`port` must be from 1 to 65535, not 70000"),
        ({"hosts": "n1", "connect_timeout": 0}, "`connect_timeout` must be 1 or more"),
        ({"hosts": "n1", "python": "a\nb"}, "`python` must be a path"),
        ({"hosts": "n1", "identityfile": "a"}, "did you mean identity_file"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match="ssh") as refused:
        SshEngine(options)
    assert words in str(refused.value)


def test_the_host_is_a_word_of_its_own_behind_all_options() -> None:
    options = SshOptions(hosts=["x"], user="ann", port=2222, identity_file="/k", config_file="/c")
    words = connection(Host.parse("bob@n1"), options, "/control")
    assert words[-3:] == ["--", "n1", remote_line(options)]
    assert [words[words.index(flag) + 1] for flag in ("-l", "-p", "-i", "-F")] == ["bob", "2222", "/k", "/c"]


def test_the_path_of_python_reaches_the_far_shell_quoted() -> None:
    line = remote_line(SshOptions(hosts=["x"], python="/tmp/it's; touch pwned $(id)/python"))
    assert shlex.split(line)[:3] == ["exec", "/tmp/it's; touch pwned $(id)/python", "-c"]
    assert remote_line(SshOptions(hosts=["x"], python="~/my venv/bin/python")).startswith(
        "exec ~/'my venv/bin/python' "
    )


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_far_line_starts_python_which_reads_a_program(shell: str) -> None:
    line = remote_line(SshOptions(hosts=["x"], server_alive_interval=3))
    program = b"import sys; print('got', sys.argv[1], f.read())"
    done = subprocess.run([shell, "-c", line], input=b"%d\n%srest" % (len(program), program), capture_output=True)
    version = "{}.{}".format(*sys.version_info[:2])
    assert done.stdout.decode() == f"\nropewalk-keeper on python {version}\ngot 15 b'rest'\n", done.stderr


def test_rendering_shows_hosts_and_job_and_no_secret() -> None:
    engine = SshEngine({"hosts": "ann@n1,n2:2222"})
    text = engine.render(JobSpec(["python", "-m", "x"], environment={"A": "b c"}, stdin=b"s3cret", door=True))
    assert (
        "-l ann" in text
        and "-p 2222" in text
        and "A='b c' python -m x" in text
        and "a folder that the keeper makes" in text
    )
    assert "s3cret" not in text


@pytest.mark.parametrize(
    ("said", "meaning", "remedy"),
    [
        ("ssh: Could not resolve hostname n1: Name or service not known", "does not resolve", "use its IP address"),
        ("ssh: connect to host n1 port 22: Connection refused", "nobody listens at port 2222", "start sshd"),
        ("ssh: connect to host n1 port 22: No route to host", "cannot be reached", "take it off `hosts`"),
        ("ssh: connect to host n1 port 22: Connection timed out", "cannot be reached", "take it off `hosts`"),
        ("Timeout, server n1 not responding.", "cannot be reached", "take it off `hosts`"),
        ("ann@n1: Permission denied (publickey).", "permission denied", "ssh-copy-id"),
        ("ann@n1: Permission denied (password).", "a key is not enough", "`PubkeyAuthentication`"),
        ("ann@n1: Permission denied (keyboard-interactive).", "a password or a code", "hosts that accept a key alone"),
        ("Host key verification failed.", "not known here", "ssh -p 2222 ann@n1"),
        ("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key ...", "set up again", "ssh-keygen -R n1"),
        ("kex_exchange_identification: Connection closed by remote host", "hung up", "MaxStartups"),
        ("UNPROTECTED PRIVATE KEY FILE!\nann@n1: Permission denied (publickey).", "read by others", "chmod 600"),
        ("/home/ann/.ssh/config: line 3: Bad configuration option: foo", "refused", "fix ~/.ssh/config"),
        ("something new", "ended with status 255", "try `ssh -p 2222 ann@n1`"),
    ],
)  # fmt: skip
def test_each_failure_of_ssh_has_a_meaning_and_a_remedy(said: str, meaning: str, remedy: str) -> None:
    text = explain(Host.parse("ann@n1:2222"), SshOptions(hosts=["n1"]), 255, said)
    assert "ann@n1:2222" in text and meaning in text and remedy in text
    assert said.splitlines()[-1] in text, "in the words of ssh too"


def test_a_changed_key_is_removed_from_the_file_and_under_the_name_that_ssh_used() -> None:
    """`config_file` may name the file, and the port is part of the name: without both, nothing was removed."""
    said = (
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
        "Offending ED25519 key in /home/ann/my cluster/known_hosts:3\r\n"
        "Host key for [n1]:2222 has changed and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n"
    )
    text = explain(Host.parse("ann@n1:2222"), SshOptions(hosts=["n1"], config_file="/c"), 255, said)
    assert "`ssh-keygen -f '/home/ann/my cluster/known_hosts' -R '[n1]:2222'`" in text


def test_pythons_that_do_not_fit_are_named_with_the_option_to_set() -> None:
    host, options = Host.parse("n1"), SshOptions(hosts=["n1"], python="/opt/py")
    assert "no Python at /opt/py on n1" in explain(host, options, 127, "sh: /opt/py: not found")
    assert "may not be run" in explain(host, options, 126, "")
    text = wrong_python(host, options, "3.9", "3.11")
    assert "/opt/py on n1 is Python 3.9" in text and "runs 3.11" in text and "Set `python`" in text
    assert "AllowStreamLocalForwarding yes" in no_forwarding(host, "")


def test_a_configuration_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """It may name a ProxyCommand, which runs here."""
    file = tmp_path / "config"
    options = {"hosts": ["n1"], "config_file": str(file)}
    SshEngine(options).close()  # it may come later, and ssh says that it is missing
    file.write_text("Host n1\n")
    SshEngine(options).close()
    file.chmod(0o666)
    with pytest.raises(EngineError, match=r"config_file: .*/config is not used.*chmod go-w"):
        SshEngine(options)


def test_the_end_of_the_interpreter_finds_no_jobs_on_lost_hosts_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # A script whose host had been lost ended with 20 lines: "cannot schedule new futures after interpreter shutdown".
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    engine = SshEngine({"hosts": ["n1", "n2"]})
    assert engine.find("run-1") == []
    engine.cancel(["n1/ssh-0123456789abcdef"])
    engine.close()
    with pytest.raises(EngineError, match=r"n1 cannot be connected to now: cannot schedule new futures.*\nn2 cannot"):
        engine.per_job(Resources())
