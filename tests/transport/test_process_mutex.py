"""Mutexes and semaphores in shared memory, whose owners are killed."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ropewalk.transport.process_mutex import (
    OWNER_DIED,
    lock,
    make_mutex,
    make_semaphore,
    post,
    recover,
    trylock,
    unlock,
    wait_at,
)


@pytest.fixture
def address() -> Iterator[int]:
    """Of zeroed memory that forked children share."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        start = ctypes.c_char.from_buffer(memory)
        yield ctypes.addressof(start)
        del start


def killed_with(address: int) -> None:
    """Fork a child that is killed with the mutex."""
    pid = os.fork()
    if pid == 0:
        lock(address)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_next_owner_learns_of_the_death_of_the_last_one_once(address: int) -> None:
    make_mutex(address)
    killed_with(address)
    assert trylock(address) == OWNER_DIED
    recover(address)
    unlock(address)
    assert trylock(address) == 0
    unlock(address)
    killed_with(address)
    lock(address)  # recovers by itself
    unlock(address)
    assert trylock(address) == 0
    unlock(address)


def test_a_thread_acquires_it_as_often_as_it_wants_and_others_wait(address: int) -> None:
    make_mutex(address)
    lock(address)
    lock(address)
    tried = list[int]()
    got = threading.Event()

    def other() -> None:
        tried.append(trylock(address))
        lock(address)
        got.set()
        unlock(address)

    thread = threading.Thread(target=other)
    thread.start()
    unlock(address)
    assert not got.is_set()
    unlock(address)
    thread.join()
    assert got.is_set()
    assert tried[0] != 0


def test_releasing_what_another_thread_has_does_nothing(address: int) -> None:
    make_mutex(address)
    lock(address)
    thread = threading.Thread(target=unlock, args=(address,))
    thread.start()
    thread.join()
    tried = list[int]()
    thread = threading.Thread(target=lambda: tried.append(trylock(address)))
    thread.start()
    thread.join()
    assert tried[0] != 0
    unlock(address)


def test_a_wake_up_of_another_process_is_not_lost_whenever_it_comes(address: int) -> None:
    make_semaphore(address)
    pid = os.fork()
    if pid == 0:
        post(address)
        os._exit(0)
    wait_at(address, 60.0)
    assert os.waitpid(pid, 0) == (pid, 0)
    left = ctypes.c_int(-1)
    assert ctypes.CDLL(None).sem_getvalue(ctypes.c_void_p(address), ctypes.byref(left)) == 0
    assert left.value == 0, "it was not woken by the post"


def test_a_wait_ends_when_its_time_is_over(address: int) -> None:
    make_semaphore(address)
    began = time.monotonic()
    wait_at(address, 0.05)
    assert time.monotonic() - began >= 0.05
