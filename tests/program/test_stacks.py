"""Stacks: where every thread of a node stands, of processes by a signal, of threads by name."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropewalk.program import stacks
from tests.transport.ends import DEADLINE_S

STUCK = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR2, all_threads=True)
def stuck_here():
    print("words of before", flush=True)
    sys.stdout.close()
    time.sleep(60)
stuck_here()
"""


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    path = tmp_path / "stuck.0.log"
    with path.open("ab") as log, subprocess.Popen([sys.executable, "-c", STUCK], stdout=log, stderr=log) as process:
        try:
            while b"before" not in path.read_bytes():
                assert process.poll() is None
            yield path, process
        finally:
            process.kill()


def test_a_process_prints_where_it_stands(stuck: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, process = stuck
    found = stacks.of_processes({"stuck.0": path}, lambda _name: process.send_signal(signal.SIGUSR2), DEADLINE_S)
    assert list(found) == ["stuck.0"] and "in stuck_here" in found["stuck.0"]
    assert "words of before" not in found["stuck.0"], "only what it said now"


def test_a_process_that_does_not_answer_is_told_apart_and_one_without_a_file_left_out(
    stuck: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    path, process = stuck
    other = tmp_path / "silent.0.log"
    other.write_text("words\n")

    def ask(name: str) -> None:
        if name == "stuck.0":
            process.send_signal(signal.SIGUSR2)

    files = {"silent.0": other, "stuck.0": path, "gone.0": tmp_path / "none.log"}
    found = stacks.of_processes(files, ask, 0.5)
    assert found["silent.0"] == "(it did not answer within 0.5 s: it is stopped, or has ended)\n"
    assert "in stuck_here" in found["stuck.0"] and set(found) == {"silent.0", "stuck.0"}


def test_nodes_of_one_process_are_asked_once(stuck: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, process = stuck
    asked: list[str] = []

    def ask(name: str) -> None:
        asked.append(name)
        process.send_signal(signal.SIGUSR2)

    found = stacks.of_processes({"table.0": path, "learner.0": path}, ask, DEADLINE_S)
    assert asked == ["table.0"] and found["table.0"] == found["learner.0"]
    assert found["table.0"].count("in stuck_here") == 1


def test_without_processes_there_is_nothing_to_wait_for() -> None:
    assert stacks.of_processes({}, lambda _name: None, DEADLINE_S) == {}


@pytest.fixture
def waiting() -> Iterator[Callable[[str], None]]:
    over = threading.Event()
    threads: list[threading.Thread] = []

    def wait_here() -> None:
        over.wait(DEADLINE_S)

    def begin(name: str) -> None:
        threads.append(threading.Thread(target=wait_here, name=name))
        threads[-1].start()

    yield begin
    over.set()
    for thread in threads:
        thread.join()


def test_threads_of_nodes_are_found_by_their_names(waiting: Callable[[str], None]) -> None:
    for name in ("actor.0", "actor.1", "my.store.0", "stranger.0", "actor"):
        waiting(name)
    found = stacks.of_threads(["actor", "my.store"], None)
    assert set(found) == {"actor.0", "actor.1", "my.store.0"}
    assert all("in wait_here" in text for text in found.values())
    assert set(stacks.of_threads(["actor", "my.store"], "my.store")) == {"my.store.0"}
