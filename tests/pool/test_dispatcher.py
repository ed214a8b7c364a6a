"""The dispatcher with real workers: what its bugs have taught. Whole stories are in `scenarios/`."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from pickle import PickleBuffer

import pytest

import ropewalk
from ropewalk.pool import standstill, standstill_watch
from ropewalk.pool.messages import CallKind
from ropewalk.pool.result_batch import ResultBatch
from ropewalk.pool.results import MapResult
from tests.patience import wait_until

pytestmark = pytest.mark.usefixtures("shared_session")


def num_argument_files() -> int:
    """Memory files of arguments that this process holds."""
    targets: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # the descriptor of the listing itself
    return sum("ropewalk-arguments" in target for target in targets)


def wait_for_file(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.002)
    return path


def wait_at_five(path: str, number: int) -> int:
    if number == 5:
        wait_for_file(path)
    return number


def size_of(data: object) -> int:
    return len(memoryview(data))  # type: ignore[arg-type]


def square_at_second_try(log: str, number: int) -> int:
    """Note that it was begun; every fiftieth kills its worker the first time, with results of others in its page."""
    with open(log, "a") as file:
        file.write(f"{number}\n")
    if number % 50 == 49:
        with open(log) as file:
            if file.read().split().count(str(number)) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    return number * number


class PatientMap(MapResult[int]):
    patient = True

    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks, None, None, lambda call: call())
        self.accepted: list[int] = []

    def accept(self, first: int, count: int, batch: ResultBatch, offset: int) -> None:
        self.accepted += range(first, first + count)
        super().accept(first, count, batch, offset)


@pytest.fixture
def gate(tmp_path: object) -> Iterator[str]:
    path = f"{tmp_path}/gate"
    yield path
    with open(path, "w"):
        pass


def test_a_worker_that_dies_after_close_is_replaced_while_there_is_work(gate: str) -> None:
    # Deaths after close() counted as planned: the last worker was not replaced, and join() waited for ever.
    pool = ropewalk.Pool(1)
    try:
        results = pool.map_async(wait_for_file, [gate] * 3, chunksize=1)
        wait_until(lambda: pool.status().running > 0, "a task runs")
        pool.close()
        os.kill(pool.status().workers[0].pid, signal.SIGKILL)
        wait_until(lambda: pool.status().num_deaths == 1, "the death is recorded")
        with open(gate, "w"):
            pass
        assert results.get(timeout=120) == [gate] * 3
        pool.join()
    finally:
        pool.terminate()
        pool.join()


def test_a_pool_resized_while_busy_has_as_many_workers_as_were_asked_for(gate: str) -> None:
    # See test_scaling: a leaving worker's rank was given out again, and its end was taken for the new one's.
    with ropewalk.Pool(3) as pool:
        pool.wait_until_ready()
        results = pool.map_async(wait_for_file, [gate] * 3, chunksize=1)
        wait_until(lambda: sum(worker.state == "running" for worker in pool.status().workers) == 3, "all are busy")
        pool.resize(1)
        pool.resize(3)
        with open(gate, "w"):
            pass
        results.get(timeout=120)
        wait_until(lambda: len(pool.status().workers) == 3, "three are left")
        names = [worker.name for worker in pool.status().workers]
        assert len(set(names)) == 3
        pool.map(str, range(30), chunksize=1)
        assert [worker.name for worker in pool.status().workers] == names


def test_what_a_cancelled_map_had_in_memory_is_given_back(gate: str) -> None:
    # Tasks that were dropped were never counted off: their memory files stayed open, their code stayed in use.
    before = num_argument_files()
    with ropewalk.Pool(1) as pool:
        pool.apply_async(wait_for_file, [gate])
        iterator = pool.imap(size_of, (PickleBuffer(bytearray(1 << 20)) for _ in range(50)))
        wait_until(lambda: num_argument_files() > before, "arguments wait in memory files")
        del iterator
        wait_until(lambda: num_argument_files() == before, "they are closed with the iterator")
        results = pool.map_async(size_of, [PickleBuffer(bytearray(1 << 20)) for _ in range(5)], chunksize=1)
        assert num_argument_files() == before + 5
        pool.terminate()
        with pytest.raises(ropewalk.errors.TaskCancelled):
            results.get(timeout=120)
        pool.join()
        assert num_argument_files() == before


def test_results_that_wait_for_the_end_of_a_patient_unit_survive_their_worker(tmp_path: Path) -> None:
    num_tasks = 400
    with ropewalk.Pool(2) as pool:
        job = PatientMap(num_tasks)
        units = [range(at, at + 100) for at in range(0, num_tasks, 100)]
        pool.start_job(job, partial(square_at_second_try, f"{tmp_path}/log"), units, CallKind.ONE)
        assert job.get(120) == [number**2 for number in range(num_tasks)]
    assert sorted(job.accepted) == [*range(num_tasks)], "one was answered twice"
    begun = Counter(int(line) for line in (tmp_path / "log").read_text().split())
    assert all(begun[number] == (2 if number % 50 == 49 else 1) for number in range(num_tasks)), "a result was lost"


def test_what_a_patient_worker_has_not_begun_is_taken_over_by_others(gate: str) -> None:
    with ropewalk.Pool(2) as pool:
        pool.wait_until_ready(120)
        job = PatientMap(20)
        pool.start_job(job, partial(wait_at_five, gate), [range(20)], CallKind.ONE)
        wait_until(lambda: sorted(job.accepted) == [number for number in range(20) if number != 5], "all others end")
        with open(gate, "w"):
            pass
        assert job.get(120) == [*range(20)]


def wait_at_gate(path: str, number: int) -> int:
    while not os.path.exists(path):
        time.sleep(0.2)
    return number


def test_a_pool_that_stands_still_says_so_and_its_workers_are_not_slower_than_the_others(
    gate: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standstill, "AFTER_S", 0.3)
    monkeypatch.setattr(standstill_watch, "_LOOK_S", 0.05)
    with ropewalk.Pool(2, name="still") as pool:
        result = pool.map_async(partial(wait_at_gate, gate), range(7), chunksize=1)
        wait_until(lambda: bool(caplog.messages), "it is told")
        status = pool.status()
        assert (status.running, status.queued) == (2, 5), "it said that more tasks run than there are workers"
        with open(gate, "w"):
            pass
        assert result.get(120) == list(range(7))
    (message,) = caplog.messages
    assert message.startswith("no task of still has ended for ") and "5 tasks wait for a worker" in message


def test_the_death_of_an_idle_worker_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with ropewalk.Pool(1, name="idle") as pool:
        pool.wait_until_ready()
        os.kill(pool.status().workers[0].pid, signal.SIGKILL)
        wait_until(lambda: bool(caplog.messages), "it is told")
    (message,) = caplog.messages
    assert message.startswith("idle.0 on host ") and message.endswith("; another worker takes its place")
