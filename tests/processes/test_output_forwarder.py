"""An agent reads the output of its processes as their owners take it, and to the end when they end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.processes import output_forwarder
from ropewalk.processes.hosted_process import HostedProcess
from ropewalk.processes.output_forwarder import OutputForwarder
from tests.processes.pretend_loop import START, PretendLink, PretendLoop


class Forwarding:
    """One process, to whose pipes the test writes."""

    def __init__(self, folder: Path | None = None) -> None:
        self.loop: Any = PretendLoop()
        self.owner: Any = PretendLink("owner")
        self.problems: list[str] = []
        self.processes: dict[str, HostedProcess] = {}
        self.forwarder = OutputForwarder(self.loop, self.processes, self.problems.append)
        self.process = self.processes["1"] = HostedProcess(msgspec.structs.replace(START, id="1"), self.owner, folder)
        self.stdout, self.stderr = self.process.child_fds()[:2]
        self.forwarder.begin(self.process)

    def readable(self, pipe: int = 0) -> None:
        self.loop.watched[self.process.pipes[pipe]]()

    @property
    def texts(self) -> list[tuple[bool, str]]:
        return [(message.is_error, message.text) for message in self.owner.sent]


@pytest.fixture
def forwarding() -> Iterator[Forwarding]:
    forwarding = Forwarding()
    yield forwarding
    forwarding.process.close()


def test_complete_lines_are_sent_at_once_and_the_rest_at_the_end(forwarding: Forwarding) -> None:
    os.write(forwarding.stdout, b"a line\nhalf")
    forwarding.readable()
    assert forwarding.texts == [(False, "a line\n")]
    os.write(forwarding.stderr, b"what killed it")
    forwarding.forwarder.finish(forwarding.process)
    texts = forwarding.texts[1:]
    assert [is_error for is_error, _ in texts] == [False, True]
    assert "half" in texts[0][1]
    assert "what killed it" in texts[1][1]
    assert not forwarding.loop.watched


def test_pipes_are_not_read_while_their_owner_has_too_much_output_in_transit(
    forwarding: Forwarding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_forwarder, "_CREDIT", 100)
    os.write(forwarding.stdout, b"x" * 99 + b"\n")
    forwarding.readable()
    assert forwarding.process.pipes[0] in forwarding.loop.watched, "100 characters may be in transit"
    os.write(forwarding.stdout, b"y\n")
    forwarding.readable()
    assert forwarding.process.pipes[0] not in forwarding.loop.watched
    assert forwarding.process.pipes[1] in forwarding.loop.watched, "this pipe is noticed when something comes"
    forwarding.forwarder.seen(forwarding.owner, 50)
    assert forwarding.process.pipes[0] not in forwarding.loop.watched, "more than half is still in transit"
    forwarding.forwarder.seen(forwarding.owner, 2)
    assert forwarding.process.pipes[0] in forwarding.loop.watched


def test_output_that_cannot_be_kept_is_one_event(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    forwarding = Forwarding(tmp_path / "file")  # no folder, so that no file can be opened in it
    for pipe, fd in enumerate((forwarding.stdout, forwarding.stderr)):
        os.write(fd, b"a line\n")
        forwarding.readable(pipe)
    forwarding.process.close()
    (problem,) = forwarding.problems
    assert problem.startswith("the output of p ")
    assert [text for _, text in forwarding.texts] == ["a line\n", "a line\n"], "it is shown all the same"
