"""Ctrl-C in a wait shows the line of the user that waited, as Kernel > Interrupt does in a notebook."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

import pytest

import ropewalk as rw

Waiting = Callable[[], AbstractContextManager[Callable[[], object]]]


class Sleeper:
    def sleep(self) -> None:
        time.sleep(600)


@contextmanager
def a_call() -> Generator[Callable[[], object]]:
    program = rw.Program("sleeper")
    sleeper = program.add(rw.Service(Sleeper))
    with program.launch() as running:
        client = running.client(sleeper)
        yield lambda: client.sleep()


@contextmanager
def a_join() -> Generator[Callable[[], object]]:
    process = rw.Process(target=time.sleep, args=(600,))
    process.start()
    try:
        yield process.join
    finally:
        process.kill()
        process.join()


@contextmanager
def a_map() -> Generator[Callable[[], object]]:
    with rw.Executor(1) as executor:
        yield lambda: list(executor.map(time.sleep, [1.0, 1.0]))


@contextmanager
def a_get() -> Generator[Callable[[], object]]:
    yield rw.Queue().get


OURS = os.path.dirname(rw.__file__)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("waiting", [a_call, a_join, a_map, a_get])
def test_a_wait_that_is_interrupted_shows_no_frame_of_ours(waiting: Waiting) -> None:
    """In a notebook, an interrupted call showed 68 lines from the inside of Ropewalk, and a join 44."""
    with waiting() as wait:
        interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt) as caught:
            wait()
        interrupt.join()
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert not [frame for frame in frames if frame.filename.startswith(OURS) and frame.name != "join"], frames
    assert len(frames) <= 2, frames
