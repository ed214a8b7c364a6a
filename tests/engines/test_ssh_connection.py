"""A host that was broken into says what no keeper says; `ssh` is a program of the test that plays it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropewalk.engines import ssh_checks, ssh_launcher
from ropewalk.engines.ssh import _marked
from ropewalk.engines.ssh_command import Host, SshOptions
from ropewalk.engines.ssh_connection import SshConnection
from ropewalk.errors import EngineError

_FACTS = '{"name": "h", "executable": "/p", "cpus": 2, "gpus": 0, "memory": 1, "time": 1.0, "free": 1}'
_PLAY = """#!{python} -S
import json, sys
def say(*words, **news):
    sys.stdout.write(" ".join(words) + json.dumps(news) * bool(news) + "\\n")
facts = json.loads('{facts}')
def ready():
    say(news="ready", facts=facts)
exec({before!r})
say("ropewalk-keeper on python %d.%d" % sys.version_info[:2]); sys.stdout.flush()
sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
exec({greeted!r})
sys.stdout.flush()
for line in sys.stdin.buffer:
    order = json.loads(line)
    answer = json.loads({answers!r}).get(order["do"], 0)
    say(news="done", to=order["number"], answer=answer); sys.stdout.flush()
"""
Connect = Callable[..., SshConnection]


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    made: list[SshConnection] = []

    def connect(greeted: str = "ready()", *, before: str = "", answers: str = "{}") -> SshConnection:
        program = _PLAY.format(python=sys.executable, facts=_FACTS, before=before, greeted=greeted, answers=answers)
        (tmp_path / "ssh").write_text(program)
        (tmp_path / "ssh").chmod(0o755)
        made.append(SshConnection(Host.parse("h"), SshOptions(hosts=["h"])))
        return made[-1]

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    yield connect
    for connection in made:
        connection.close()


def test_what_nobody_has_asked_for_is_not_kept(connect: Connect) -> None:
    """Each end of a job that nobody had started, and each answer to no order, stayed in the launcher's memory."""
    flood = (
        "ready()\n"
        "for number in range(20_000):\n"
        "    say(news='ended', job=f'ssh-{number}', code=0, why='', log='')\n"
        "    say(news='done', to=number + 50, answer='x' * 100)"
    )
    connection = connect(flood)
    assert connection.ask("find") == 0
    assert (connection.endings, connection._answers, connection._asked) == ({}, {}, set())
    connection.ask("start", job="ssh-7")
    connection._learn({"news": "ended", "job": "ssh-7", "code": 3, "why": "", "log": "x" * 1_000_000})
    connection._learn({"news": "ended", "job": "ssh-7", "code": 0, "why": "again", "log": ""})
    assert connection.endings["ssh-7"].code == 3 and len(connection.endings["ssh-7"].log) <= 64 * 1024


def test_a_greeting_without_end_takes_no_memory(connect: Connect) -> None:
    assert len(connect(before="for number in range(20_000): say('x' * 100)")._said) <= 8 * 1024


@pytest.mark.parametrize(
    "said",
    [
        'facts["cpus"] = "many"; ready()',
        'facts["memory"] = None; ready()',
        'facts["free"] = float("inf"); ready()',
        'del facts["gpus"]; ready()',
        'say(news="ready", facts=[1])',
        'say(news="ended")',
        'say("1")',
    ],
)
def test_what_no_keeper_says_ends_the_connection_with_words(said: str, connect: Connect) -> None:
    """Facts of another type raised errors of Python wherever they were used, and ended the run."""
    with pytest.raises(EngineError, match="h sends what no keeper sends"):
        connect(said)


@pytest.mark.parametrize("answer", ["1", "[1]", "[[1]]", '[["run", "a/ssh-kept-1"]]', '[["run", ["x"]]]', '{"a": 1}'])
def test_jobs_that_are_none_are_not_listed(answer: str, connect: Connect) -> None:
    assert _marked(connect(answers=f'{{"find": {answer}}}')) == {}


def test_jobs_of_a_host_are_listed_by_name(connect: Connect) -> None:
    connection = connect(answers='{"find": [["run", "ssh-12ab"], ["other", "ssh-kept-1"], ["x", "x/ssh-1"]]}')
    assert _marked(connection) == {"ssh-12ab": "run", "ssh-kept-1": "other"}


@pytest.mark.parametrize("answer", ["1", "[1]", '["x", ""]', "[1, 2]"])
def test_an_output_that_is_none_is_an_error_with_words(answer: str, connect: Connect) -> None:
    with pytest.raises(EngineError, match="h sends what no keeper sends as an output"):
        ssh_launcher.LauncherOutput().read(connect(answers=f'{{"output": {answer}}}'), "ssh-kept-1")


@pytest.mark.parametrize("answer", ['""', "7"])
def test_a_host_that_never_runs_the_trial_is_not_waited_for_for_ever(
    answer: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_checks, "_TRIAL_S", 0.1)
    connection = connect(answers=f'{{"log": {answer}, "start": "/tmp/x/door.sock"}}')
    with pytest.raises(EngineError, match="h runs no program that was started for a trial"):
        ssh_checks.require_forwarding(connection)
