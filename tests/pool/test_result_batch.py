"""A batch keeps what arrived as bytes, and unpickles it once, where it is asked for."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any

import pytest

from ropewalk.errors import RemoteError
from ropewalk.pool.result_batch import RaisedEntry, ResultBatch
from ropewalk.processes.page import PICKLED
from ropewalk.transport.failures import Failure, rebuild_error
from tests.pool.batches import CountsLoads, InterruptedOnce, batch_of, failure_of


class TwoArguments(Exception):
    """Cannot be rebuilt: its arguments are not those of __init__."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class RaisesWhenLoaded:
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_a_batch_gives_values_and_errors_in_their_places() -> None:
    batch = batch_of(1, None, "text", ValueError("bad"), 2.5, True)
    entries = batch.entries()
    assert entries[:3] == [1, None, "text"] and entries[4:] == [2.5, True]
    assert type(entries[3]) is RaisedEntry and isinstance(entries[3].error, ValueError)
    assert not batch.all_values
    assert batch.entries() is entries


def test_a_batch_without_errors_knows_so_once_unpickled() -> None:
    batch = batch_of(1, "two")
    batch.entries()
    assert batch.all_values


def test_buffers_belong_to_the_last_entry() -> None:
    data = bytearray(b"x" * 10_000)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(pickle.PickleBuffer(data), 5, buffer_callback=buffers.append)
    small = pickle.dumps("small", 5)
    batch = ResultBatch([1, small, b""], {1: PICKLED, 2: PICKLED}, [pickled, bytearray(data)], "")
    assert batch.share_bytes > 3000
    one, two, three = batch.entries()
    assert (one, two, bytes(three)) == (1, "small", bytes(data))


def test_an_interrupt_while_a_batch_is_unpickled_leaves_it_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterruptedOnce, "interrupts", 1)
    batch = batch_of("before", InterruptedOnce(), 3)
    with pytest.raises(KeyboardInterrupt):
        batch.entries()
    assert batch.entries() == ["before", "here", 3]
    assert batch.all_values


def test_a_result_that_cannot_be_unpickled_here_is_an_error_of_its_own_place() -> None:
    first, second, third = batch_of(1, RaisesWhenLoaded(), 3).entries()
    assert (first, third) == (1, 3)
    assert isinstance(second.error, ValueError)
    assert "while a result from worker 1 on host a was unpickled" in second.error.__notes__[0]


def test_a_batch_is_unpickled_once_whoever_asks_first(executor: ThreadPoolExecutor) -> None:
    CountsLoads.threads.clear()
    batch = batch_of(CountsLoads(), 7)
    start = threading.Barrier(8)

    def ask() -> list[Any]:
        start.wait()
        return batch.entries()

    answers = [future.result() for future in [executor.submit(ask) for _ in range(8)]]
    assert len(CountsLoads.threads) == 1
    assert all(answer is answers[0] for answer in answers)


def test_an_exception_comes_home_as_itself_with_the_remote_traceback_as_its_cause() -> None:
    error = rebuild_error(failure_of(KeyError("name"), "Traceback: over there\n"), "worker 3 on host b")
    assert type(error) is KeyError and error.args == ("name",)
    assert isinstance(error.__cause__, RemoteTraceback) and "over there" in str(error.__cause__)
    assert error.__notes__ == ["It was raised in worker 3 on host b; the remote traceback is above."]


@pytest.mark.parametrize(
    "pickled", [pickle.dumps(TwoArguments(1, 2)), b"no pickle", pickle.dumps("not an exception"), b""]
)
def test_an_exception_that_cannot_be_rebuilt_still_says_all_it_said(pickled: bytes) -> None:
    error = rebuild_error(Failure("lib.Odd", "1 and 2", "Traceback: there\n", pickled, []), "")
    assert isinstance(error, RemoteError) and error.type_name == "lib.Odd"
    assert "lib.Odd: 1 and 2" in str(error) and "there" in str(error.__cause__)
