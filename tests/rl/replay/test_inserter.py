"""Inserters send several insertions at a time, in order, and wait when too many are without an answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ropewalk as rw
from ropewalk.errors import DeadlineExceeded
from ropewalk.program.running import RunningProgram
from ropewalk.rl.environments.spec import ArraySpec
from ropewalk.rl.replay.inserter import Inserter
from ropewalk.rl.replay.service import Replay, ReplayServer
from ropewalk.rl.replay.table import ReplayTable
from tests.patience import wait_until
from tests.rl.replay.stand_in import insertion, queue

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.fixture
def running() -> Iterator[RunningProgram]:
    program = rw.Program("inserted")
    program.add(Replay([queue(2)]), name="replay")
    with program.launch() as running:
        running.wait_ready()
        yield running


def test_insertions_without_an_answer_are_bounded_and_done_in_order(running: RunningProgram) -> None:
    client = running.client("replay")
    inserter = Inserter(client, ahead=3)
    for number in range(5):
        inserter.insert(insertion(number))  # two are done, three wait
    assert inserter.num_waiting == 3
    with pytest.raises(DeadlineExceeded, match="3 insertions of stream 0#0 are not done yet"):
        inserter.flush(0.02)
    found = [client.sample("queue", 1).columns["value"].item() for _ in range(5)]
    inserter.flush()
    assert found == [0.0, 1000.0, 2000.0, 3000.0, 4000.0] and inserter.num_waiting == 0


def test_another_run_id_follows_when_all_of_the_one_before_is_done(running: RunningProgram) -> None:
    client = running.client("replay")
    inserter = Inserter(client, ahead=2)
    inserter.insert(insertion(0))
    inserter.insert(insertion(0, run_id="0#1"))
    inserter.flush()
    assert client.sample("queue", 2).info.run_ids == ("0#0", "0#1")
    with pytest.raises(ValueError, match="ended"):
        client.insert(insertion(1))


def test_what_waits_is_given_up_when_it_is_closed(running: RunningProgram) -> None:
    client = running.client("replay")
    inserter = Inserter(client, ahead=8)
    for number in range(6):
        inserter.insert(insertion(number))
    inserter.close()
    inserter.close()
    wait_until(lambda: client.waiting()["insert"] == 0)
    assert client.info()["queue"].inserts <= 2
    client.reset("queue")
    assert client.insert(insertion(0, run_id="1#0"))


def test_a_signature_is_checked_before_anything_is_sent() -> None:
    signature = {"value": ArraySpec((2,), "float64")}
    server = ReplayServer([ReplayTable.queue("queue", 4, signature)])
    inserter = Inserter(server)
    with pytest.raises(ValueError, match=r"shape \(1,\) and dtype float64; its signature says \(2,\)"):
        inserter.insert(insertion(0))
    assert inserter.num_waiting == 0 and server.info()["queue"].inserts == 0
    inserter.insert(insertion(0, size=2))
    inserter.flush()
    assert server.info()["queue"].inserts == 1


def test_a_stream_begins_anew_when_the_server_is_another_one(caplog: pytest.LogCaptureFixture) -> None:
    first, second = ReplayServer([queue(8)]), ReplayServer([queue(8)])
    inserter = Inserter(first)
    for number in range(2):
        inserter.insert(insertion(number))
    inserter.flush()
    inserter._target = second  # pyright: ignore[reportPrivateUsage]  # as if the server had come back empty
    inserter.insert(insertion(2))
    inserter.flush()
    batch = second.sample("queue", 8)
    assert (batch.columns["value"].tolist(), batch.info.run_ids) == ([[2000.0]], ("0#0~1",))
    assert "stream 0#0~1 follows 0#0" in caplog.text


def test_an_error_of_the_server_is_raised_at_the_next_call() -> None:
    server = ReplayServer([queue(8)])
    inserter = Inserter(server)
    wrong = insertion(0)
    wrong.items["queue"].columns["value"].rows[:] = 7
    inserter.insert(wrong)
    with pytest.raises(ValueError, match="row 7"):
        inserter.flush()


def test_less_than_one_ahead_is_refused() -> None:
    with pytest.raises(ValueError, match="ahead must be a whole number, 1 or more, not 0"):
        Inserter(ReplayServer([queue(1)]), 0)
