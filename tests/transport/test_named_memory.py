"""Named memory that a process has only attached to stays when that process ends; what it made goes with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest

import ropewalk as rw

SCRIPT = """
import sys
from multiprocessing.shared_memory import SharedMemory
from ropewalk.transport.named_memory import keep_memory_of_others
keep_memory_of_others()
"""


@pytest.fixture
def memory() -> Iterator[Any]:
    made = SharedMemory(create=True, size=100)
    yield made
    made.close()
    made.unlink()


def run(text: str, *arguments: str) -> tuple[str, str]:
    """What a process with these lines prints, and what it complains of, until its helper process has ended as well."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + text, *arguments], capture_output=True, text=True, timeout=140
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def is_there(name: str) -> bool:
    try:
        SharedMemory(name).close()
    except FileNotFoundError:
        return False
    return True


def test_memory_of_others_stays(memory: Any) -> None:
    told = run("memory = SharedMemory(sys.argv[1]); memory.buf[3] = 7; memory.close()", memory.name)
    assert told == ("", "")
    assert memory.buf[3] == 7
    assert is_there(memory.name)


def test_memory_that_a_process_has_made_goes_with_it() -> None:
    name, complaint = run(
        "memory = SharedMemory(create=True, size=10); SharedMemory(memory.name).close(); print(memory.name)"
    )
    assert not is_there(name)
    assert "leaked shared_memory" in complaint


def test_whoever_made_or_attached_may_unlink_it_and_nobody_complains() -> None:
    unlink = "made = SharedMemory(create=True, size=10); other = SharedMemory(made.name); {}.unlink()"
    assert run(unlink.format("made")) == run(unlink.format("other")) == ("", "")
    made = SharedMemory(create=True, size=10)
    assert run("SharedMemory(sys.argv[1]).unlink()", made.name) == ("", "")
    assert not is_there(made.name)
    made.close()
    with pytest.raises(FileNotFoundError):
        made.unlink()
    # What it had noted itself: its own helper would look for it.
    from multiprocessing import resource_tracker

    resource_tracker.unregister(made._name, "shared_memory")  # type: ignore[attr-defined]


def attach(name: str, answers: rw.Queue) -> None:
    from multiprocessing import resource_tracker

    memory: Any = SharedMemory(name)
    memory.buf[0] += 1
    memory.close()
    answers.put(resource_tracker._resource_tracker._fd is None)  # type: ignore[attr-defined]


def test_a_process_has_nothing_to_see_to_that_it_only_attached_to(memory: Any) -> None:
    answers = rw.Queue()
    process = rw.Process(target=attach, args=(memory.name, answers))
    process.start()
    assert answers.get(timeout=120)
    process.join()
    assert (process.exitcode, memory.buf[0]) == (0, 1)
    assert is_there(memory.name)
