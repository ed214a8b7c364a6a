"""Entry functions of processes that write records."""

from __future__ import annotations

import mmap
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.page import REQUEST
from ropewalk.tracking.pipe_sink import PipeSink, sink_here
from ropewalk.tracking.records import Metrics, NoteAdded
from tests.processes.entries import Word, up

NAMES = [f"metric {number}" for number in range(10)]


def metrics(number: int) -> Metrics:
    return Metrics("", NAMES, [float(number)] * len(NAMES), number, 1.0)


class Counter:
    """How many calls of `put` have returned, in a file that outlives the process."""

    def __init__(self, path: str | Path) -> None:
        Path(path).touch()
        os.truncate(path, 8)
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)
        self._words = memoryview(self._map).cast("q")

    @property
    def value(self) -> int:
        return self._words[0]

    @value.setter
    def value(self, value: int) -> None:
        self._words[0] = value

    def close(self) -> None:
        self._words.release()
        self._map.close()


def here() -> PipeSink:
    sink = sink_here()
    assert sink
    return sink


def count(context: ProcessContext) -> None:
    """Write numbered records, and count them."""
    link = up(context)
    counter, sink = Counter(os.environ["COUNTER"]), here()
    for number in range(int(os.environ["RECORDS"])):
        sink.put("run", metrics(number))
        counter.value = number + 1
    link.receive()


def count_and_die(context: ProcessContext) -> None:
    """Write numbered records, and be killed in the same moment."""
    up(context)
    sink = here()
    for number in range(1000):
        sink.put("run", metrics(number))
    os.kill(os.getpid(), signal.SIGKILL)


def write_side_by_side(context: ProcessContext) -> None:
    """Write short and long notes from two threads and two forked children at once."""
    up(context)
    sink = here()

    def write(writer: str) -> None:
        for number in range(200):
            sink.put("run", NoteAdded(f"{writer} {number} " + writer * (30_000 if number % 20 == 0 else 10), number))

    children = [_forked(lambda writer=writer: write(writer)) for writer in "ab"]
    threads = [threading.Thread(target=write, args=(writer,)) for writer in "cd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        os.waitpid(child, 0)


def _forked(call: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    call()
    os._exit(0)


def overreach(context: ProcessContext) -> None:
    """Write to a run of others, twice, then to the own one, and then what is no record."""
    up(context)
    sink = here()
    for number in range(2):
        sink.put("another", metrics(number))
    sink.put("run", metrics(2))
    os.write(context.records_fd, b"\xff" * 100)
    sink.put("run", metrics(3))


def tell_requests(context: ProcessContext) -> None:
    """Say what is asked, whenever asked to look."""
    link = up(context)
    while link.receive():
        link.send(Word(str(context.page.words[REQUEST])))
