"""Calls whose answers their thread asks for later, without waking another one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ropewalk.calls import call_context
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.errors import DeadlineExceeded, ServiceLost
from tests.calls.ends import FarProcess, far
from tests.calls.objects import Refused
from tests.patience import PATIENCE_S, wait_until


def test_answers_are_those_of_calls_that_wait_in_whichever_order_they_are_asked_for(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        begun = [client.echo.begin(number) for number in range(3)]
        failing = client.fail.begin("custom")
        assert client.echo("between") == "between"
        assert [call.result() for call in reversed(begun)] == [2, 1, 0]
        with pytest.raises(Refused, match="ann was refused with 7"):
            failing.result()
        (connection,) = end.caller._connections.values()
        assert not connection.num_pending


def test_the_loop_reads_nothing_for_it(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        client.empty()
        (connection,) = end.caller._connections.values()
        looks: list[str] = []
        connection._look_later = lambda: looks.append("later")
        connection._arm = lambda: looks.append("arm")
        call = client.pid.begin()
        turned = threading.Event()
        end.loop.call_soon(turned.set)
        assert turned.wait(PATIENCE_S)
        assert call.result() == process.process.pid
        assert not looks


def test_another_thread_that_reads_delivers_its_answer(tmp_path: Path) -> None:
    with far(tmp_path) as (_, _end, client):
        first = client.echo.begin("first")
        other: list[Any] = []
        thread = threading.Thread(target=lambda: other.append(client.echo("other")))
        thread.start()
        thread.join(PATIENCE_S)
        assert other == ["other"] and first.result() == "first"


def test_a_call_that_is_lost_is_repeated_when_its_answer_is_asked_for_if_it_may_be(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        gate = tmp_path / "gate"
        repeated, lost = client.pid_when.begin(str(gate)), client.sleep.begin(60)
        process.kill()
        wait_until(lambda: end.caller._connections[process.place.address].closed)
        end.places.put("far", ReplicaLocation("waiting", cause="it restarts"))
        successor = FarProcess(tmp_path, "Target", "successor")
        try:
            end.places.put("far", successor.place)
            gate.touch()
            assert repeated.result() == successor.process.pid
            with pytest.raises(ServiceLost, match=r"mark it @rw\.idempotent"):
                lost.result()
        finally:
            successor.close()


def test_a_deadline_is_that_of_the_code_that_began_it(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        with call_context.deadline(0.05):
            call = client.sleep.begin(60)
        with pytest.raises(DeadlineExceeded, match="sleep"):
            call.result()
        (connection,) = end.caller._connections.values()
        assert not connection.num_pending
