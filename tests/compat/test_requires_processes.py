"""A process of a function with `requires` gets what the function needs and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from ropewalk.compat.process import Process
from ropewalk.compat.requires import requires
from ropewalk.errors import StartFailed

pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs"),
    pytest.mark.usefixtures("shared_session"),
]


@requires(cpus=1)
def on_one_cpu() -> None:
    sys.exit(10 + len(os.sched_getaffinity(0)))


class OnOneCpu(Process):
    @requires(cpus=1)
    def run(self) -> None:
        on_one_cpu()


class OnTwo(OnOneCpu):
    @requires(cpus=2)
    def run(self) -> None:
        on_one_cpu()


@requires(cpus=1)
class Sized(Process):
    def run(self) -> None:
        on_one_cpu()


def unsaid() -> None:
    on_one_cpu()


def exit_code(process: Process) -> int | None:
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize(
    ("make", "cpus"),
    [(lambda: Process(target=on_one_cpu), 1), (OnOneCpu, 1), (OnTwo, 2), (Sized, 1)],
    ids=["target", "run", "run of a subclass", "class"],
)
def test_a_process_runs_on_as_many_cpus_as_were_said(make: Callable[[], Process], cpus: int) -> None:
    assert exit_code(make()) == 10 + cpus


def test_a_process_of_which_nothing_was_said_runs_on_all() -> None:
    assert exit_code(Process(target=unsaid)) == 10 + len(os.sched_getaffinity(0))


@requires(memory="256Mi")
def allocate() -> None:
    bytearray(1 << 30)


def test_too_large_an_allocation_is_a_memory_error_that_says_why() -> None:
    process = Process(target=allocate)
    assert exit_code(process) == 1
    assert process.failure and "the memory limit of this process is 256 MiB (requires(memory=...))" in process.failure


@requires(memory="256Mi")
def start_others() -> None:
    code = "kept = bytearray(150 << 20); kept[::4096] = b'x' * len(kept[::4096]); input()"
    others = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for _ in range(2)]
    others[0].wait()


def test_a_process_that_uses_too_much_is_ended_and_says_so() -> None:
    process = Process(target=start_others)
    assert exit_code(process) == -9
    assert process.failure and "MiB, its memory limit is 256 MiB (requires(memory=...))" in process.failure


@requires(cpus=4096)
def enormous() -> None:
    """Nothing."""


def test_what_no_host_has_is_refused_with_both_numbers() -> None:
    process = Process(target=enormous, name="Giant-1")
    process.start()
    refusal = r"asks for 4096 CPUs \(requires\(cpus=\.\.\.\)\), and .* has \d+; ask for less"
    with pytest.raises(StartFailed, match=refusal):
        process.join()
