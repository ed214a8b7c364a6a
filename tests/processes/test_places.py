"""A fixed number of hosts, with different room on each: every process finds its place, and none is crowded in silence.

The engine stands for an allocation of Slurm with three CPUs on one node and one on the other (`-N 2 -n 4`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.engines import ENGINES
from ropewalk.engines.engine import HostSlots, JobSpec
from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.errors import EngineError
from tests.patience import PATIENCE_S
from tests.population.neighbours import Neighbours, files_of_hosts
from tests.processes import leaving

ROOMS = {"n1": HostCapacity(3), "n2": HostCapacity(1)}


class Uneven(Neighbours):
    """Notes what was asked for on which host."""

    asked: list[tuple[str, float]]

    def per_job(self, process: Resources) -> int | None:
        return max(room.holds(process) for room in ROOMS.values())

    def places(self) -> HostSlots:
        return HostSlots(ROOMS, "the pair of hosts", "or for a third one")

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        self.asked.append((spec.place, spec.resources.cpus))
        return super().submit(spec, count, run_id, request_id)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[rw.Session]:
    monkeypatch.setitem(ENGINES, "uneven", f"{__name__}:Uneven")
    monkeypatch.setattr(Uneven, "asked", [], raising=False)
    monkeypatch.setenv("ROPEWALK_LEASE_S", "60")  # a busy machine is no lost host
    monkeypatch.setenv("ROPEWALK_CODE", "shared")  # what is under test is here: no bundle of it for each agent
    with files_of_hosts(monkeypatch), rw.Session("uneven") as session:
        yield session


def sizes(session: rw.Session) -> list[tuple[str, int]]:
    """The hosts with the number of processes on each of their agents."""
    return sorted((agent.share.place, len(agent.processes)) for agent in session.hosts())


def test_a_pool_that_grows_finds_the_rest_of_each_host(session: rw.Session) -> None:
    with rw.Pool(2, session=session) as pool:
        pool.wait_until_ready(120)
        assert sizes(session) == [("n1", 2)]
        pool.scale_to(4)
        pool.wait_until_ready(120)
        assert sizes(session) == [("n1", 1), ("n1", 2), ("n2", 1)]
        assert sorted(Uneven.asked) == [("n1", 1), ("n1", 2), ("n2", 1)]
        pool.scale_to(1)
        pool.scale_to(3)  # while two or three are still on their way out
        assert sum(pool.map(abs, range(-30, 0), chunksize=1)) == 465
        assert not pool.status().events


def test_what_was_there_first_leaves_the_rest_to_a_pool(session: rw.Session) -> None:
    queue = rw.Queue(session=session)  # in a depot, for which an agent comes that has room for one process
    with rw.Pool(4, session=session) as pool:
        pool.wait_until_ready(120)
        assert sizes(session) == [("n1", 1), ("n1", 2), ("n2", 1)], "none runs beside three others on one CPU"
    queue.close()


def test_more_workers_than_there_is_room_for_are_refused(session: rw.Session) -> None:
    with pytest.raises(rw.ProcessLimit, match="pair of hosts is too small for 6 processes of 1 CPU: it has room for 4"):
        with rw.Pool(6, session=session) as pool:
            pool.map(abs, range(6))
    with rw.Pool(4, session=session) as pool:  # the others go on
        assert pool.map(abs, [-1]) == [1]


def test_a_pool_whose_hosts_cannot_be_asked_has_not_reached_a_limit(
    session: rw.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No host of the ssh engine could be reached, and the error was a `ProcessLimit`, whose page speaks of pools."""

    def unreached(engine: Uneven, process: Resources) -> int:
        raise EngineError("the host n1 is of no use: it cannot be reached")

    monkeypatch.setattr(Uneven, "per_job", unreached)
    with rw.Pool(1, session=session) as pool, pytest.raises(rw.StartFailed, match="n1 is of no use") as failed:
        pool.map(abs, [-1])
    assert any("ropewalk explain StartFailed" in note for note in failed.value.__notes__)


def test_an_elastic_pool_stays_at_what_there_is_room_for(session: rw.Session) -> None:
    with rw.Pool(2, max_processes=6, session=session) as pool:
        pool.map(time.sleep, [0.1] * 30, chunksize=1)
        status = pool.status()
        assert len(status.workers) == 4
        assert any("stays at 4 workers: the pair of hosts is too small for" in event for event in status.events)


def test_a_worker_that_is_replaced_while_it_leaves_counts_once(session: rw.Session) -> None:
    with rw.Pool(4, maxtasksperchild=1, session=session) as pool:
        assert len(set(pool.map(leaving.pid, range(8), chunksize=1))) == 8


def test_a_worker_that_leaves_is_not_counted_from_then_on(session: rw.Session) -> None:
    """The one in its place was counted beside it until the loop came to it: a busy host refused the fifth of four."""
    with rw.Pool(4, session=session) as pool:
        pool.wait_until_ready(120)
        id = next(iter(session.processes.ids()))
        held, over = threading.Event(), threading.Event()
        session.loop.call_soon(lambda: (held.set(), over.wait(PATIENCE_S)))
        assert held.wait(PATIENCE_S)
        try:
            session.processes.leaves(id)
            known = session.processes.known(id)
            assert known is not None and known.is_leaving
        finally:
            over.set()


@pytest.mark.parametrize("chunks", [1, None])
def test_a_worker_takes_the_place_of_one_that_still_leaves(session: rw.Session, chunks: int | None) -> None:
    # It found no room, as those that leave still had theirs, and went to the host with the fewest processes: a CPU of
    # n2 had three workers, and three CPUs of n1 had one, for as long as the pool lived.
    with rw.Pool(4, leaving.end_slowly, maxtasksperchild=chunks, session=session) as pool:
        pool.wait_until_ready(120)
        if chunks is None:
            pool.scale_to(1)
            pool.scale_to(4)
        else:
            pool.map(abs, range(4), chunksize=1)
        pool.wait_until_ready(120)
        deadline = time.monotonic() + PATIENCE_S
        while sum(count for _, count in sizes(session)) > 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sizes(session) == [("n1", 3), ("n2", 1)]
        assert not pool.status().events


def test_a_pool_takes_the_places_of_one_that_is_being_terminated(session: rw.Session) -> None:
    # Its workers counted until they were gone: three of the next pool's went to n2 and one to n1, and stayed there.
    first = rw.Pool(4, leaving.ignore_requests, session=session)
    first.wait_until_ready(120)
    pids = [worker.pid for worker in first.status().workers]
    first.terminate(grace_s=PATIENCE_S)
    with rw.Pool(4, session=session) as second:
        second.wait_until_ready(120)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        first.join()
        assert sizes(session) == [("n1", 3), ("n2", 1)]


def test_a_crowd_of_several_users_is_told(session: rw.Session) -> None:
    with rw.Pool(4, session=session) as first, rw.Pool(2, session=session) as second:
        first.wait_until_ready(120)
        second.wait_until_ready(120)
        assert sum(count for _, count in sizes(session)) == 6
        told = _wait_for_event(second, "where agent-")
        assert "processes run on" in told and "of 1 CPU, because no other host can be had: they share its CPUs" in told


def _wait_for_event(pool: Any, words: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := [event for event in pool.status().events if words in event]):
        assert time.monotonic() < deadline, f"nobody said {words!r}: {pool.status().events}"
        time.sleep(0.05)
    return found[0]


def test_an_agent_that_idles_makes_room_for_what_does_not_fit_beside_it(session: rw.Session) -> None:
    with rw.Pool(2, session=session) as pool:
        pool.wait_until_ready(120)
    with rw.Pool(1, resources=Resources(cpus=3), session=session) as pool:
        pool.wait_until_ready(120)
        assert sizes(session) == [("n1", 1)]
        assert Uneven.asked == [("n1", 2), ("n1", 3)]


def test_a_program_that_does_not_fit_says_so(session: rw.Session) -> None:
    program = rw.Program("crowd")
    for _ in range(5):
        program.add(rw.Worker(time.sleep, 0.1))
    with pytest.raises(rw.ProgramFailed, match="pair of hosts is too small for 5 processes of 1 CPU"):
        program.launch(session=session).wait(120)
