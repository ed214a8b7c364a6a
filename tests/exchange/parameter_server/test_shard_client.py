"""Clients of shards: what is urgent overtakes, and what a server has lost is sent again."""

from __future__ import annotations

import threading
import time

import pytest

from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.parameter_server.outcomes import Accepted, Behind, PullAnswer
from ropewalk.exchange.parameter_server.shard_client import Attempt, Letter, ShardClient, SharedPort
from tests.exchange.parameter_server.local_servers import HeldShard


class Desk:
    """Has letters of 10 bytes, and notes what happens."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.changed = threading.Condition()

    def encode(self, key: int, attempt: Attempt) -> Letter | None:
        return None if attempt.over else Letter(attempt.step, bytes(10), 1.0)

    def deliver(self, answer: PullAnswer, attempt: Attempt) -> None:
        raise AssertionError("nothing is pulled in these tests")

    def failed(self, attempt: Attempt, error: BaseException) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def enrol_again(self, shard: int) -> None:
        raise AssertionError("nothing is lost in these tests")


def courier(shard: HeldShard, desk: Desk, in_flight_bytes: int) -> ShardClient:
    return ShardClient(
        0, shard, "w0", desk, in_flight_bytes=in_flight_bytes, replay_bytes=1000, keeps_all=True, wait_s=0.01
    )


@pytest.mark.parametrize("by_priority", [True, False])
def test_pieces_of_first_layers_overtake_those_that_were_ready_before_them(by_priority: bool) -> None:
    shard, desk = HeldShard(), Desk()
    sends = courier(shard, desk, in_flight_bytes=20)
    sends.begin(Attempt(0, 0))
    for key in (5, 4, 3):  # as the backward makes them ready
        sends.post(key, key if by_priority else 0)
        shard.wait_for(min(6 - key, 2))
    for key in (2, 1, 0):
        sends.post(key, key if by_priority else 0)
    order: list[int] = []
    for num in range(6):
        order = shard.wait_for(min(num + 2, 6))
        shard.pushed[num][1].set_exception(ValueError("answered"))  # (an answer that begins no pull)
    assert order == ([5, 4, 0, 1, 2, 3] if by_priority else [5, 4, 3, 2, 1, 0])
    sends.close()


def test_no_more_is_on_the_way_than_allowed_but_for_a_single_piece() -> None:
    shard, desk = HeldShard(), Desk()
    sends = courier(shard, desk, in_flight_bytes=1)
    sends.begin(Attempt(0, 0))
    for key in range(3):
        sends.post(key, key)
    assert shard.wait_for(1) == [0]
    assert len(shard.pushed) == 1
    shard.pushed[0][1].set_exception(ValueError("answered"))
    assert shard.wait_for(2) == [0, 1]
    shard.pushed[1][1].set_exception(ValueError("answered"))
    assert shard.wait_for(3) == [0, 1, 2]
    sends.close()


def test_a_step_that_is_over_is_not_pushed() -> None:
    shard, desk = HeldShard(), Desk()
    sends = courier(shard, desk, in_flight_bytes=10)
    first = Attempt(0, 0)
    sends.begin(first)
    sends.post(1, 1)
    sends.post(2, 2)
    shard.wait_for(1)
    first.over = True
    shard.pushed[0][1].set_result(Accepted())
    sends.begin(Attempt(1, 0))
    sends.post(3, 3)
    assert shard.wait_for(2) == [1, 3]
    sends.close()
    assert not desk.failures


def test_what_was_written_for_a_step_that_was_taken_back_meanwhile_is_neither_kept_nor_sent() -> None:
    """Otherwise a replay would send it in place of what was written for the step when it was done again."""
    shard = HeldShard()
    writing, goes_on = threading.Event(), threading.Event()

    class SlowDesk(Desk):
        def encode(self, key: int, attempt: Attempt) -> Letter | None:
            letter = super().encode(key, attempt)
            if attempt.epoch == 0:
                writing.set()
                assert goes_on.wait(120)
            return letter

    desk = SlowDesk()
    sends = courier(shard, desk, in_flight_bytes=100)
    first, again = Attempt(0, 0), Attempt(1, 0)
    sends.begin(first)
    sends.post(7, 7)
    assert writing.wait(120)
    first.over = True
    sends.begin(again)
    goes_on.set()
    sends.post(7, 7)
    assert shard.wait_for(1) == [7]
    shard.pushed[0][1].set_result(Behind(0))
    assert shard.wait_for(2) == [7, 7]  # it once more, and nothing else
    shard.pushed[1][1].set_exception(ValueError("answered"))
    sends.close()
    assert len(shard.pushed) == 2


def test_a_piece_that_is_answered_when_the_next_step_begins_is_not_awaited_in_that() -> None:
    """The shard said that it lacked the piece, nothing was kept of it, and the step failed: a server had come back."""
    shard, desk = HeldShard(), Desk()
    sends = courier(shard, desk, in_flight_bytes=100)

    class LastMoment(Attempt):
        """Is over right after it was looked at."""

        @property
        def over(self) -> bool:
            if shard.pushed and sends._attempt is self:  # pyright: ignore[reportPrivateUsage]
                sends.begin(Attempt(0, 1))
            return False

        @over.setter
        def over(self, is_over: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
            pass

    sends.begin(LastMoment(0, 0))
    sends.post(7, 7)
    assert shard.wait_for(1) == [7]
    shard.pushed[0][1].set_result(Accepted())
    assert not sends._awaited  # pyright: ignore[reportPrivateUsage]
    sends.close()
    assert not desk.failures


def test_couriers_share_a_slow_link_and_do_not_overtake_its_rate() -> None:
    """The moment at which the link is free is read and written in one turn."""
    port = SharedPort(LinkEmulation(1e6))
    size, num_threads, num_messages = 2000, 4, 10

    def send() -> None:
        for _ in range(num_messages):
            port.sent(size)

    threads = [threading.Thread(target=send) for _ in range(num_threads)]
    slept: list[int] = []
    inside = threading.Lock()

    def sleep(_seconds: float) -> None:
        assert inside.acquire(blocking=False), "two are in the link at once"
        slept.append(1)
        time.sleep(0.0005)
        inside.release()

    port._sleep = sleep  # pyright: ignore[reportPrivateUsage]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(slept) >= num_threads * num_messages - 1
