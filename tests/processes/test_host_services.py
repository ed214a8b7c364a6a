"""One service for each host: found by the launcher and by processes, gone with its agent, started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ropewalk.errors import StartFailed
from ropewalk.pool.pool import Pool
from ropewalk.processes import bootstrap, host_services
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.host_services import SERVICE, ServiceUp, find_through_agent
from ropewalk.processes.session import Session
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial_owner
from tests.patience import wait_until

ENTRY = f"{__name__}:serve"
FAILING = f"{__name__}:fail"


def serve(context: ProcessContext) -> None:
    link = dial_owner(parse_address(context.owner_address), context.credentials, SERVICE)
    link.send(ServiceUp(f"unix:/{os.getpid()}"))
    link.receive()


def fail(context: ProcessContext) -> None:
    raise SystemExit(7)


def find_from_here(entry: str) -> str:
    assert bootstrap.current
    return find_through_agent(bootstrap.current, entry)


@pytest.fixture
def session() -> Iterator[Session]:
    with Session() as session:
        yield session


def test_launcher_and_processes_of_a_host_find_the_same_service(session: Session) -> None:
    address = session.find_service(ENTRY)
    assert address == session.find_service(ENTRY)
    with Pool(2, session=session) as pool:
        assert set(pool.map(find_from_here, [ENTRY] * 4, chunksize=1)) == {address}


def test_a_service_that_died_is_started_again(session: Session) -> None:
    address = session.find_service(ENTRY)
    os.kill(int(address.rpartition("/")[2]), signal.SIGKILL)
    wait_until(lambda: session.find_service(ENTRY) != address, what="another one is there")


def find_another(entry: str, unanswered: str) -> str:
    assert bootstrap.current
    return find_through_agent(bootstrap.current, entry, unanswered)


def test_whoever_gets_no_answer_hears_of_the_next_service_also_before_the_launcher_knows_of_the_end(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_services, "_NEWS_S", 600.0)
    address = session.find_service(ENTRY)
    with Pool(2, session=session) as pool, ThreadPoolExecutor(1) as threads:
        doubt = threads.submit(session.find_service, ENTRY, address)
        other = pool.apply_async(find_another, (ENTRY, address))
        assert pool.apply(find_from_here, (ENTRY,)) == address  # one that does not doubt it is told of it
        assert not doubt.done() and not other.ready()
        os.kill(int(address.rpartition("/")[2]), signal.SIGKILL)
        assert doubt.result(120) == other.get(120) == session.find_service(ENTRY) != address


def test_a_service_that_does_not_answer_and_has_not_ended_is_found_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_services, "_NEWS_S", 0.05)
    address = session.find_service(ENTRY)
    assert session.find_service(ENTRY, address) == address


def test_a_service_that_cannot_start_is_an_error_for_all_who_ask(session: Session) -> None:
    with pytest.raises(StartFailed, match="exited with code 7"):
        session.find_service(FAILING)
    with Pool(1, session=session) as pool, pytest.raises(StartFailed, match="exited with code 7"):
        pool.apply(find_from_here, (FAILING,))


def test_a_service_takes_no_room_of_other_processes(session: Session) -> None:
    session.find_service(ENTRY)
    (agent,) = session.hosts()
    assert not agent.processes
    assert len(agent.services) == 1


def test_a_host_that_is_about_to_be_taken_away_has_one_service_as_well(session: Session) -> None:
    with Pool(2, session=session) as pool:
        pool.map(abs, range(4), chunksize=1)
        (agent,) = session.hosts()
        agent.draining = "its machine is about to go"
        assert len(set(pool.map(find_from_here, [ENTRY] * 6, chunksize=1))) == 1
        assert len(agent.services) == 1
