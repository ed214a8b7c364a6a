"""The keeper of the ssh engine, spoken to over pipes: a job that outlives the connection, and what is asked of it."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ropewalk.engines import keeper
from tests.patience import PATIENCE_S

JOB = f"{keeper.KEPT}of-a-test"
#: Says its process id and what it read, and ends with 7 when it is asked to.
WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(os.getpid(), sys.stdin.read(), flush=True)
time.sleep(600)
"""


class Conversation:
    """One connection: a keeper, its orders and its news."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._number = 0
        self.heard: list[dict[str, Any]] = []

    def ask(self, do: str, **order: object) -> Any:
        self._number += 1
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"do": do, "number": self._number, **order}).encode() + b"\n")
        while True:
            news = json.loads(self.process.stdout.readline())
            self.heard.append(news)
            if news.get("to") == self._number:
                assert news["news"] == "done", news["why"]
                return news["answer"]

    def detach(self, code: str, stdin: bytes = b"", **order: object) -> None:
        words = {"command": [sys.executable, "-c", code], "run": "r", "environment": {}, "time_limit_s": None, **order}
        self.ask("detach", job=JOB, stdin=base64.b64encode(stdin).decode(), **words)

    def output(self, after: int = 0) -> str:
        return base64.b64decode(self.ask("output", job=JOB, after=after)[1]).decode()

    def state(self) -> dict[str, Any]:
        return self.ask("state", job=JOB)

    def wait(self, condition: Callable[[], object]) -> None:
        due = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < due, (self.state(), self.heard)
            time.sleep(0.02)


@pytest.fixture
def connect(tmp_path: Path) -> Generator[Callable[[], contextlib.AbstractContextManager[Conversation]]]:
    @contextlib.contextmanager
    def connected() -> Generator[Conversation]:
        with subprocess.Popen(
            [sys.executable, keeper.__file__, "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env={"XDG_STATE_HOME": str(tmp_path / "state")},
        ) as process:  # fmt: skip
            yield Conversation(process)
            assert process.stdin
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 0

    yield connected
    with connected() as last:
        last.ask("forget", job=JOB)
    assert list(tmp_path.glob("state/ropewalk/jobs/*")) == []


Connect = Callable[[], contextlib.AbstractContextManager[Conversation]]


def test_a_job_outlives_its_connection_and_later_ones_ask_for_it(connect: Connect) -> None:
    with connect() as first:
        first.detach(WAITS, b"words")
    with connect() as second:
        second.wait(lambda: "words\n" in second.output())
        pid = int(second.output().split()[0])
        assert second.state() == {"state": "running"}
        assert second.output(after=len(str(pid)) + 1) == "words\n"
        assert ["r", JOB] in second.ask("find")  # beside those of other programs on this host
        second.ask("signal", job=JOB)
        second.wait(lambda: second.state() != {"state": "running"})
        assert second.state() == {"state": "ended", "code": 7, "why": ""}
        assert second.output() == f"{pid} words\n" and not psutil.pid_exists(pid)


def test_an_order_that_is_sent_again_starts_nothing(connect: Connect, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); import time; time.sleep(600)"
    for _ in range(2):
        with connect() as conversation:
            conversation.detach(code)
            conversation.wait((tmp_path / "starts").exists)
    with connect() as conversation:
        conversation.ask("forget", job=JOB)
        assert conversation.state() == {"state": "unknown"}
    assert (tmp_path / "starts").read_text() == "x"


def test_a_job_that_cannot_start_is_refused_and_leaves_nothing(connect: Connect) -> None:
    with connect() as conversation:
        with pytest.raises(AssertionError, match="No such file"):
            conversation.detach("", command=["/no/such/program"])
        assert conversation.state() == {"state": "unknown"}


def test_it_ends_at_its_time_limit_with_what_it_has_started(connect: Connect) -> None:
    # The child is in a session of its own, and carries no mark.
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    code = f"{child} env={{}}, start_new_session=True); print(p.pid, flush=True); p.wait()"
    with connect() as conversation:
        conversation.detach(code, time_limit_s=1.0)
        conversation.wait(lambda: conversation.state()["state"] == "ended")
        assert conversation.state() == {"state": "ended", "code": -9, "why": "its time limit was over"}
        assert not psutil.pid_exists(int(conversation.output()))


def test_a_job_whose_keeper_was_killed_ends_and_is_lost(connect: Connect, tmp_path: Path) -> None:
    with connect() as conversation:
        conversation.detach(WAITS)
        conversation.wait(conversation.output)
        job = psutil.Process(int(conversation.output()))
        psutil.Process(int((tmp_path / f"state/ropewalk/jobs/{JOB}/keeper").read_text().split()[0])).kill()
        conversation.wait(lambda: conversation.state() == {"state": "lost"})
        conversation.wait(lambda: not job.is_running())


@pytest.mark.parametrize("file", ["keeper", "ended"])
def test_a_job_of_which_a_crash_of_the_host_has_left_an_empty_file_is_lost(
    file: str, connect: Connect, tmp_path: Path
) -> None:
    """Whoever asked for it ended the keeper of the connection, and with it all jobs of that launcher on the host."""
    folder = tmp_path / f"state/ropewalk/jobs/{JOB}"
    folder.mkdir(parents=True)
    (folder / file).touch()
    with connect() as conversation:
        assert conversation.state() == {"state": "lost"}


def test_only_the_end_of_a_long_output_is_sent(connect: Connect) -> None:
    with connect() as conversation:
        conversation.detach("print('x' * 300_000 + 'y')")
        conversation.wait(lambda: conversation.state()["state"] == "ended")
        position, data = conversation.ask("output", job=JOB, after=0)
        assert (position, len(base64.b64decode(data))) == (300_002, 256 * 1024)
        assert base64.b64decode(data).endswith(b"xy\n")


def test_a_large_order_is_told_while_it_arrives(connect: Connect) -> None:
    with connect() as conversation:
        conversation.detach("import sys; print(len(sys.stdin.read()))", b"x" * 1_000_000)
        assert {"news": "receiving"} in conversation.heard, "or the launcher would give up on a slow link"
        conversation.wait(lambda: conversation.output() == "1000000\n")
