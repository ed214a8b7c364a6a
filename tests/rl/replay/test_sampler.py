"""Samplers fetch ahead, make whole batches of parts, and end at once when they are closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import DeadlineExceeded
from ropewalk.program.running import RunningProgram
from ropewalk.rl.replay.inserter import Inserter
from ropewalk.rl.replay.limiters import MinSize
from ropewalk.rl.replay.sampler import Sampler
from ropewalk.rl.replay.service import Replay, ReplayServer
from tests.patience import wait_until
from tests.rl.replay.stand_in import fifo, insertion, queue

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.fixture
def running() -> Iterator[RunningProgram]:
    program = rw.Program("sampled")
    program.add(Replay([queue(100)]), name="replay")
    with program.launch() as running:
        running.wait_ready()
        yield running


def insert(replay: Any, number: int, items: int = 1) -> None:
    assert replay.insert(insertion(number, items=items))


def test_calls_are_under_way_ahead_of_use(running: RunningProgram) -> None:
    client = running.client("replay")
    with Sampler(client, "queue", 4, ahead=2) as sampler:
        insert(client, 0, items=12)
        first = next(sampler).columns["value"].ravel().tolist()
        wait_until(lambda: client.info()["queue"].samples == 8, what="the batch after it")
        wait_until(lambda: sampler.is_ready)
        second = next(sampler).columns["value"].ravel().tolist()
        assert sorted([first, second]) == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]


def test_a_closed_sampler_wakes_the_thread_that_waits_in_it_and_leaves_no_call(running: RunningProgram) -> None:
    client = running.client("replay")
    sampler = Sampler(client, "queue", 4)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(sampler))
    thread.start()
    wait_until(lambda: client.waiting()["sample"] == 2)
    sampler.close()
    thread.join(60)
    assert not thread.is_alive() and found == []
    wait_until(lambda: client.waiting()["sample"] == 0)
    with pytest.raises(StopIteration):
        next(sampler)
    sampler.close()
    insert(client, 0, items=4)
    assert client.info()["queue"].samples == 0


def test_the_deadline_of_next_leaves_the_calls_under_way(running: RunningProgram) -> None:
    client = running.client("replay")
    with Sampler(client, "queue", 2, ahead=1, deadline_s=0.02) as sampler:
        with pytest.raises(DeadlineExceeded, match="table 'queue'"):
            next(sampler)
        wait_until(lambda: client.waiting()["sample"] == 1)  # on a busy host it may arrive after that time
        insert(client, 0, items=2)
        wait_until(lambda: sampler.is_ready)
        assert len(next(sampler)) == 2


def test_a_batch_that_is_larger_than_the_queue_consists_of_several_draws() -> None:
    program = rw.Program("small")
    program.add(Replay([queue(4)]), name="replay")
    with program.launch() as running:
        inserter = Inserter(running.client("replay"), ahead=8)
        with Sampler(running.client("replay"), "queue", 10) as sampler:
            for number in range(6):
                inserter.insert(insertion(number, items=4))
            first, second = next(sampler), next(sampler)
        found = [*first.columns["value"].ravel().tolist(), *second.columns["value"].ravel().tolist()]
        # Each once; two calls that are under way at the same time may overtake each other.
        assert len(set(found)) == 20 and set(found) <= {1000.0 * (index // 4) + index % 4 for index in range(24)}


def test_a_server_of_this_process_is_sampled_from_other_threads() -> None:
    server = ReplayServer([queue(4)])
    with Sampler(server, "queue", 2, ahead=1) as sampler:
        thread = threading.Thread(target=lambda: insert(server, 0, items=2))
        thread.start()
        assert next(sampler).columns["value"].ravel().tolist() == [0.0, 1.0]
        thread.join()


def test_large_batches_are_right_in_memory_of_the_server_however_long_they_are_kept() -> None:
    program = rw.Program("large")
    program.add(Replay([fifo(limiter=MinSize(16))]), name="replay")
    with program.launch() as running:
        client = running.client("replay")
        for number in range(16):
            client.insert(insertion(number, tables=["fifo"], size=1 << 14))
        with Sampler(client, "fifo", 4) as sampler:
            kept = [next(sampler) for _ in range(20)]  # more than are lent at a time
            for _ in range(20):
                assert np.unique(next(sampler).columns["value"]).tolist() == [0.0]
        for batch in kept:
            assert batch.columns["value"].shape == (4, 1 << 14)
            assert np.unique(batch.columns["value"]).tolist() == [0.0]
            batch.columns["value"][:] = 1  # it is the caller's own


def test_a_large_batch_is_not_copied_on_its_way(running: RunningProgram) -> None:
    client = running.client("replay")
    with Sampler(client, "queue", 1, ahead=1) as sampler:
        seen: list[int] = []
        for number in range(6):
            assert client.insert(insertion(number, size=1 << 16))
            value = next(sampler).columns["value"]
            assert np.unique(value).tolist() == [1000.0 * number]
            seen.append(value.ctypes.data)
            del value
        assert len(set(seen[2:])) == 1, "the same memory again and again"


@pytest.mark.parametrize("name", ["batch_size", "ahead", "workers"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number, 1 or more, not 0"):
        Sampler(ReplayServer([queue(4)]), "queue", **({"batch_size": 1} | {name: 0}))
