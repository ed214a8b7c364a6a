"""Signals that ask a run of reinforcement learning to end wait for its checkpoint, whoever handles them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from ropewalk.processes import interrupts
from ropewalk.rl.interruptions import Interruptions

Handler = Callable[[int, FrameType | None], None]


class Asked(Exception):
    """What the handlers below raise."""


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(params=["telling_handlers", "raising_handlers"])
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, handlers: None) -> Handler:
    """A handler as `ropewalk run` and tracked runs install them."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise Asked(number)

    monkeypatch.setattr(interrupts, request.param, [handle])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return handle


def train(*signals: int, saved: list[bool]) -> None:
    """A run that gets signals in the middle of a round, and saves after it."""
    with Interruptions(deferred=True) as interruptions:
        for number in signals:
            send(number)
        saved.append(interruptions.came)
        interruptions.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handlers_of_ours_are_called_after_the_checkpoint(ours: Handler, number: int) -> None:
    # Under `ropewalk run` they raised at once, and what was learned since the last checkpoint was lost.
    saved: list[bool] = []
    with pytest.raises(Asked, match=str(int(number))):
        train(number, saved=saved)
    assert saved == [True] and signal.getsignal(number) is ours


def test_a_second_request_is_raised_at_once(ours: Handler) -> None:
    saved: list[bool] = []
    with pytest.raises(Asked):
        train(signal.SIGINT, signal.SIGINT, saved=saved)
    assert not saved


def test_copies_of_one_sigterm_are_one_request(handlers: None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    saved: list[bool] = []
    with pytest.raises(SystemExit) as ended:  # from the batch system, and from the parent that passes its own on
        train(signal.SIGTERM, signal.SIGTERM, signal.SIGTERM, saved=saved)
    assert saved == [True] and ended.value.code == 128 + signal.SIGTERM


def test_a_handler_of_the_script_stays(handlers: None) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    with Interruptions(deferred=True) as interruptions:
        send(signal.SIGTERM)
        assert heard == [signal.SIGTERM] and not interruptions.came
