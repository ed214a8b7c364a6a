"""Threads that call one process at the same time get connections of their own, and notice nothing of it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.calls import spare_connections
from ropewalk.calls.rpc_connection import RpcConnection
from ropewalk.calls.spare_connections import CALLS_FOR_A_SPARE, MOST_SPARES, SpareConnections
from ropewalk.errors import ServiceLost, TransportError
from tests.calls.ends import End, far
from tests.calls.test_lost_services import KILLED, in_threads, interrupted
from tests.patience import PATIENCE_S, wait_until

# --- when there is one more -------------------------------------------------------------------------------------------


class Spare:
    """In the place of an `RpcConnection`."""

    def __init__(self) -> None:
        self.reading_thread = 0
        self.closed = ""

    def close(self, why: str) -> None:
        self.closed = why


class Peer:
    """Is dialled by the connections of a test."""

    def __init__(self) -> None:
        self.made: list[Spare] = []
        self.refuses = False
        self.spares = SpareConnections(self.dial)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def dial(self) -> Spare:
        if self.refuses:
            raise TransportError("no descriptor is left")
        self.made.append(Spare())
        return self.made[-1]

    def miss(self, times: int) -> list[Any]:
        return [self.spares.free() for _ in range(times)]


def test_a_spare_is_made_for_threads_that_meet_often() -> None:
    peer = Peer()
    assert peer.miss(CALLS_FOR_A_SPARE - 1) == [None] * (CALLS_FOR_A_SPARE - 1)
    assert peer.spares.free() is peer.made[0]
    assert peer.miss(3) == peer.made * 3, "it is free, and was not taken"
    assert peer.spares.num_taken == 0


def test_there_are_at_most_so_many_and_only_free_ones_are_given() -> None:
    peer = Peer()
    for _ in range(CALLS_FOR_A_SPARE * (MOST_SPARES + 3)):
        if (spare := peer.spares.free()) is not None:
            spare.reading_thread = 1
    assert len(peer.made) == MOST_SPARES == peer.spares.num_taken
    peer.made[3].reading_thread = 0
    assert peer.spares.free() is peer.made[3]


def test_one_that_has_ended_is_not_given_and_makes_room() -> None:
    peer = Peer()
    for _ in range(CALLS_FOR_A_SPARE * MOST_SPARES):
        if (spare := peer.spares.free()) is not None:
            spare.reading_thread = 1
    peer.made[0].closed, peer.made[0].reading_thread = "an interrupt has torn it", 0
    assert peer.miss(CALLS_FOR_A_SPARE - 1) == [None] * (CALLS_FOR_A_SPARE - 1)
    assert peer.spares.free() is peer.made[MOST_SPARES]


def test_a_peer_that_refuses_one_is_not_asked_again_soon() -> None:
    peer = Peer()
    peer.refuses = True
    assert peer.miss(CALLS_FOR_A_SPARE) == [None] * CALLS_FOR_A_SPARE
    peer.refuses = False
    assert set(peer.miss(10 * CALLS_FOR_A_SPARE)) == {None}
    assert any(peer.miss(20_000)), "it is never asked again"


def test_all_are_closed_together_and_one_that_is_just_made_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer()
    (first,) = {*peer.miss(CALLS_FOR_A_SPARE)} - {None}
    first.reading_thread = 1
    dial = peer.dial
    monkeypatch.setattr(peer.spares, "_dial", lambda: (peer.spares.close("the program has ended"), dial())[1])
    peer.miss(CALLS_FOR_A_SPARE)
    assert [spare.closed for spare in peer.made] == ["the program has ended"] * 2


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call that finds all connections taken makes one more."""
    monkeypatch.setattr(spare_connections, "CALLS_FOR_A_SPARE", 1)


def connection_of(end: End) -> RpcConnection:
    (connection,) = end.caller._connections.values()  # pyright: ignore[reportPrivateUsage]
    return connection


def spares_of(end: End) -> tuple[RpcConnection, ...]:
    spares = connection_of(end).spares
    assert spares is not None
    return spares._spares  # pyright: ignore[reportPrivateUsage]


def num_taken(end: End) -> int:
    return sum(bool(each.reading_thread) for each in spares_of(end))


def read_by(end: End, call: Callable[[], object]) -> threading.Thread:
    """A thread that makes a call, and reads the first connection until it is answered."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    wait_until(lambda: connection_of(end).reading_thread == thread.ident, "no thread reads")
    return thread


@contextlib.contextmanager
def read_meanwhile(end: End, client: Any) -> Generator[None]:
    """Within the block, another thread waits for an answer and reads the first connection."""
    client.empty()
    thread = read_by(end, client.wait_beside)
    yield
    client.open()
    thread.join(PATIENCE_S)


def failure_into(failures: list[ServiceLost], call: Callable[[], object]) -> None:
    try:
        call()
    except ServiceLost as error:
        failures.append(error)


@pytest.mark.usefixtures("soon")
def test_calls_of_many_threads_get_their_own_answers(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):

        def calls(thread: int) -> list[Any]:
            return [client.echo((thread, number)) for number in range(300)]

        client.empty()
        outcomes = in_threads(*(functools.partial(calls, thread) for thread in range(12)))
        assert outcomes == [[(thread, number) for number in range(300)] for thread in range(12)]
        assert 0 < len(spares_of(end)) <= MOST_SPARES


def test_threads_that_meet_once_make_none(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        with read_meanwhile(end, client):
            assert client.echo(1) == 1
            assert not spares_of(end)


@pytest.mark.usefixtures("soon")
def test_a_call_does_not_overtake_those_that_its_thread_began_before(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        with read_meanwhile(end, client):
            assert client.echo(1) == 1 and len(spares_of(end)) == 1, "no spare was taken"
            for number in range(0, 90, 9):
                for before in range(8):
                    client.note.send(number + before)
                client.note(number + 8)
            begun = client.note.begin(90)
            client.note(91)
            begun.result()
            assert client.noted() == list(range(92))


@pytest.mark.usefixtures("soon")
def test_calls_on_spares_count_where_the_replica_with_the_fewest_is_chosen(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        client.empty()
        first = read_by(end, client.wait_beside)
        replica = client._replica(0)
        assert replica.num_pending == 0
        second = threading.Thread(target=client.wait, daemon=True)
        second.start()
        wait_until(lambda: replica.num_pending == 1, "the call is not counted")
        client.open()
        first.join()
        second.join()
        assert replica.num_pending == 0


@pytest.mark.usefixtures("soon")
def test_a_death_ends_the_calls_on_all_connections(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        client.empty()
        outcomes: list[ServiceLost] = []
        wait = functools.partial(failure_into, outcomes, client.wait)
        threads = [read_by(end, wait)]
        for num in (1, 2, 3):
            threads.append(threading.Thread(target=wait, daemon=True))
            threads[-1].start()
            wait_until(
                lambda num=num: sum(bool(each.reading_thread) for each in spares_of(end)) == num, "none is taken"
            )
        process.kill()
        end.places.put("far", KILLED)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(outcomes) == 4, "a call hangs"
        assert all(error.cause == "killed by SIGKILL" and error.started for error in outcomes)
        assert all(spare.closed for spare in spares_of(end))


@pytest.mark.usefixtures("soon")
def test_calls_on_spares_end_when_the_host_is_lost_whose_links_never_end(tmp_path: Path) -> None:
    with far(tmp_path) as (process, end, client):
        client.empty()
        waits = read_by(end, functools.partial(failure_into, [], client.wait_beside))
        lost: list[ServiceLost] = []
        beside = threading.Thread(target=failure_into, args=(lost, client.wait), daemon=True)
        beside.start()
        wait_until(lambda: any(spare.reading_thread for spare in spares_of(end)), "no spare was taken")
        (spare,) = spares_of(end)
        end.places.put("far", KILLED)
        end.caller.lose(process.place.address, "its host is lost")
        beside.join(PATIENCE_S)
        waits.join(PATIENCE_S)
        assert lost[0].cause == "killed by SIGKILL" and spare.closed == "its host is lost"


@pytest.mark.usefixtures("soon")
def test_an_interrupt_ends_the_call_on_a_spare_and_no_other(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        client.empty()
        answers: list[str] = []
        waits = read_by(end, lambda: answers.append(client.wait_beside()))
        interrupted(client.wait)
        (spare,) = spares_of(end)
        assert not spare.closed and not spare.reading_thread, "the link was given up"
        client.open()
        assert client.echo(2) == 2
        waits.join()
        assert answers == ["beside"] and spares_of(end) == (spare,)


@pytest.mark.usefixtures("soon")
def test_what_stands_for_this_process_at_its_peer_has_none(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        client.empty()
        connection_of(end).may_tear = False  # as those to depots and managers
        with read_meanwhile(end, client):
            assert client.echo(1) == 1
            assert not spares_of(end)


@pytest.mark.usefixtures("soon")
def test_batched_calls_share_one_link_on_which_they_arrive_together(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        with read_meanwhile(end, client):
            assert client.double(np.ones(2)).tolist() == [2.0, 2.0]
            assert not spares_of(end)


@pytest.mark.usefixtures("soon")
def test_a_forked_child_closes_its_copies(tmp_path: Path) -> None:
    with far(tmp_path) as (_, end, client):
        with read_meanwhile(end, client):
            assert client.echo(1) == 1
            fds = [each.link.stream.fileno() for each in (connection_of(end), *spares_of(end))]
            assert len(fds) == 2
            if (child := os.fork()) == 0:
                end.caller.forget()
                os._exit(sum(is_open(fd) for fd in fds))
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, "copies are open in the child"
            assert all(map(is_open, fds)), "the links of the parent are gone"


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
