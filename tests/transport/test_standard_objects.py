"""Objects of the standard library's multiprocessing: what takes their place, and memory that has a name."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.shared_memory
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ropewalk.errors import NotPicklable, WrongHost
from ropewalk.transport import standard_objects
from ropewalk.transport.serialization import Payload, dumps, dumps_code, dumps_result, loads


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int)]


MADE = {
    "Lock": multiprocessing.Lock,
    "RLock": multiprocessing.RLock,
    "Semaphore": multiprocessing.Semaphore,
    "BoundedSemaphore": multiprocessing.BoundedSemaphore,
    "Event": multiprocessing.Event,
    "Condition": multiprocessing.Condition,
    "Barrier": lambda: multiprocessing.Barrier(2),
    "Queue": multiprocessing.Queue,
    "JoinableQueue": multiprocessing.JoinableQueue,
    "SimpleQueue": multiprocessing.SimpleQueue,
    "Value": lambda: multiprocessing.Value("i"),
    "Array": lambda: multiprocessing.Array("d", 3),
    "Pipe": lambda: multiprocessing.Pipe()[0],
    "Process": multiprocessing.Process,
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("journey", [dumps, dumps_result, dumps_code])
def test_what_takes_the_place_of_an_object_of_multiprocessing_is_named(name: str, journey: Any) -> None:
    thing = MADE[name]()
    try:
        with pytest.raises(NotPicklable) as caught:
            journey((1, [thing]))
        assert caught.value.path.endswith("[1][0]")
        assert "inheritance" in str(caught.value)
        assert str(caught.value).endswith(f"use ropewalk.{name}() instead of multiprocessing.{name}()")
    finally:
        for end in ("close", "join_thread"):
            getattr(thing, end, lambda: None)()


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: multiprocessing.Array("c", b"abc"), "Array"), (lambda: multiprocessing.Value(Point), "Value")],
)
def test_strings_are_arrays_and_structures_are_values(make: Any, name: str) -> None:
    with pytest.raises(NotPicklable, match=rf"use ropewalk\.{name}\(\) instead of multiprocessing\.{name}\(\)"):
        dumps(make())


def test_a_raw_value_of_multiprocessing_names_ours() -> None:
    with pytest.raises(NotPicklable, match=r"ropewalk\.RawValue\(\) or ropewalk\.RawArray\(\)"):
        dumps([multiprocessing.RawValue("i")])


@pytest.fixture
def memory() -> Iterator[multiprocessing.shared_memory.SharedMemory]:
    made = multiprocessing.shared_memory.SharedMemory(create=True, size=100)
    yield made
    made.close()
    made.unlink()


def test_named_memory_is_the_same_where_it_arrives(memory: Any) -> None:
    arrived = loads(*_parts(dumps([memory])))[0]
    arrived.buf[3] = 7
    assert memory.buf[3] == 7
    arrived.close()


def test_a_shareable_list_is_the_same_where_it_arrives() -> None:
    made: Any = multiprocessing.shared_memory.ShareableList([1, 2, 3])
    arrived = loads(*_parts(dumps_result(made)))
    arrived[0] = 10
    assert list(made) == [10, 2, 3]
    arrived.shm.close()
    made.shm.close()
    made.shm.unlink()


@pytest.mark.parametrize("kind", ["SharedMemory", "ShareableList"])
def test_named_memory_raises_on_another_host(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "SharedMemory":
        made: Any = multiprocessing.shared_memory.SharedMemory(create=True, size=10)
    else:
        made = multiprocessing.shared_memory.ShareableList([1])
    sent = dumps(made)
    monkeypatch.setattr(standard_objects, "home", lambda: "another system")
    with pytest.raises(WrongHost, match=r"another host.*ropewalk\.Queue"):
        loads(*_parts(sent))
    memory = getattr(made, "shm", made)
    memory.close()
    memory.unlink()


READER = """
import sys
from ropewalk.transport.serialization import loads
memory = loads(sys.stdin.buffer.read())
memory.buf[0] = 5
memory.close()
"""


def test_named_memory_outlives_a_process_that_only_attached_to_it(memory: Any) -> None:
    # https://github.com/python/cpython/issues/82300: its resource tracker destroyed it when that process ended.
    sent = dumps(memory)
    done = subprocess.run(
        [sys.executable, "-c", READER], input=sent.pickle, capture_output=True, check=True, timeout=200
    )
    assert memory.buf[0] == 5
    again = multiprocessing.shared_memory.SharedMemory(memory.name)
    again.close()
    assert done.stderr == b""


def test_memory_that_came_home_is_still_seen_to_by_its_maker(memory: Any) -> None:
    sent = dumps(memory)
    arrived = loads(*_parts(sent))
    assert arrived._ropewalk_creator == os.getpid()
    sent_on = loads(*_parts(dumps(arrived)))
    assert sent_on._ropewalk_creator == os.getpid()
    for copy in (arrived, sent_on):
        copy.close()


def _parts(payload: Payload) -> tuple[Any, Any]:
    return payload.pickle, payload.buffers
