"""What SIGTERM means to the process of a node: the notice that its host is taken away, or its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.processes import interrupts
from ropewalk.program import node_process


class Process:
    """A unit that runs in this process, and the handler of its SIGTERM."""

    def __init__(self, *, on_several_hosts: bool) -> None:
        self.planned: list[tuple[float, Callable[[], None]]] = []
        self.unit = SimpleNamespace(stopping=False, noticed_until=0.0)
        loop: Any = SimpleNamespace(
            call_soon=lambda call: call(), call_later=lambda delay_s, call: self.planned.append((delay_s, call))
        )
        self.handle = node_process._terminating(  # pyright: ignore[reportPrivateUsage]
            self.unit,  # pyright: ignore[reportArgumentType]
            loop if on_several_hosts else None,
        )

    def is_asked_to_stop(self, grace_s: float) -> None:
        self.unit.stopping, self.unit.noticed_until = True, time.monotonic() + grace_s

    def hears(self) -> None:
        self.handle(signal.SIGTERM, None)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that the process sends to itself."""
    sent: list[int] = []
    monkeypatch.setattr(interrupts, "raising_handlers", [])
    monkeypatch.setattr(node_process, "raising_handlers", [])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    return sent


def test_a_notice_that_comes_twice_is_one_and_ends_a_process_that_nobody_asks(killed: list[int]) -> None:
    process = Process(on_several_hosts=True)
    process.hears()
    process.hears()
    assert not killed
    [(delay_s, end)] = process.planned
    assert delay_s > interrupts.SAME_REQUEST_S, "its own signal is no copy"
    end()
    assert killed == [signal.SIGTERM]


def test_a_notice_that_comes_after_the_word_of_the_launcher_interrupts_nothing(killed: list[int]) -> None:
    process = Process(on_several_hosts=True)
    process.is_asked_to_stop(60)
    process.hears()
    process.hears()
    assert not killed and not process.planned


def test_a_process_that_is_asked_to_stop_is_ended_after_its_grace(killed: list[int]) -> None:
    for on_several_hosts, grace_s in ((True, 0.0), (False, 60.0)):
        process = Process(on_several_hosts=on_several_hosts)
        process.is_asked_to_stop(grace_s)
        with pytest.raises(SystemExit) as ended:
            process.hears()
        assert ended.value.code == 143
    assert not killed


def test_a_forked_child_and_a_process_on_one_host_end_at_once(
    killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    Process(on_several_hosts=False).hears()
    assert killed == [signal.SIGTERM]
    child = Process(on_several_hosts=True)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    child.hears()
    assert killed == [signal.SIGTERM] * 2 and not child.planned
