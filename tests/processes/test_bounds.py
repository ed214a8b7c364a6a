"""A host refuses what it has not, and gives what it has to one process at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.processes.bounds import Bounds, Cpus
from ropewalk.processes.gpus import VISIBLE, Gpus
from ropewalk.processes.messages import StartProcess

GIB = 1 << 30
NONE = Path("/none")


def start(name: str = "Process-1", *, bounded: bool = True, **asked: Any) -> StartProcess:
    facts: dict[str, Any] = {
        "id": f"{name}#1-1",
        "name": name,
        "entry": "",
        "secret": "",
        "address": "",
        "environment": {},
        "cpus": 1,
        "preload": (),
        "folder": "",
        "path": (),
        "task_limit_s": None,
    }
    return StartProcess(**(facts | asked), bounded=bounded)


@pytest.fixture
def bounds() -> Bounds:
    gpus = Gpus({VISIBLE: "4,6"}, NONE, NONE)
    return Bounds("n1", Cpus(range(4)), gpus, num_cpus=4, memory_bytes=8 * GIB)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cpus": 64}, "Process-1 asks for 64 CPUs (requires(cpus=...)), and n1 has 4; ask for less, or use an engine"),
        ({"cpus": 5}, "asks for 5 CPUs (requires(cpus=...)), and n1 has 4;"),
        ({"gpus": 3}, "asks for 3 GPUs (requires(gpus=...)), and n1 has 2 (by its driver, or CUDA_VISIBLE_DEVICES);"),
        ({"memory_bytes": 9 * GIB}, "asks for 9.0 GiB of memory (requires(memory=...)), and n1 has 8.0 GiB; ask"),
    ],
)
def test_more_than_a_host_has_is_refused_with_both_numbers(bounds: Bounds, asked: dict[str, Any], words: str) -> None:
    assert words in bounds.refusal(start(**asked))
    refusal = bounds.refusal(start(bounded=False, **asked))
    assert ("cpus" not in asked) == bool(refusal), "CPUs can be shared by more than there are; GPUs and memory cannot"


def test_a_limit_that_the_kernel_has_rounded_to_pages_holds_what_it_was_made_for() -> None:
    # A container for one process of 1 GB has a limit of 999,997,440 bytes.
    bounds = Bounds("n1", Cpus(()), Gpus({}, NONE, NONE), num_cpus=1, memory_bytes=10**9 // 4096 * 4096)
    assert bounds.refusal(start(memory_bytes=10**9)) == ""
    assert "asks for 954 MiB of memory" in bounds.refusal(start(memory_bytes=10**9 + 2**17))


@pytest.mark.parametrize("asked", [{"cpus": 4, "gpus": 2, "memory_bytes": 8 * GIB}, {"cpus": 4.5}, {"cpus": 0.1}])
def test_all_that_a_host_has_is_not_too_much(bounds: Bounds, asked: dict[str, Any]) -> None:
    assert bounds.refusal(start(**asked)) == ""


def test_a_gpu_that_another_process_has_is_refused_by_the_name_of_that_process(bounds: Bounds) -> None:
    first = bounds.give(start("Process-1", gpus=1))
    bounds.give(start("worker/pool-2.0", gpus=1, bounded=False))
    refusal = bounds.refusal(start("Process-3", gpus=1))
    assert "Process-3 asks for 1 GPUs (requires(gpus=...)), and n1 has 0 of 2 left; wait for the end of" in refusal
    assert refusal.endswith("Process-1, worker/pool-2.0, or start fewer")
    refusal = bounds.refusal(start("pool-2.1", gpus=1, bounded=False))
    assert refusal.startswith("pool-2.1 asks for 1 GPUs (gpus=), and n1 has 0 of 2 left; wait for the end of Process-1")
    assert bounds.refusal(start("pool-2.2", bounded=False)) == ""
    bounds.take_back(first.id)
    bounds.take_back(first.id)
    assert bounds.refusal(start("Process-3", gpus=1)) == ""
    assert bounds.give(start("Process-3", gpus=1)).environment == first.environment == {VISIBLE: "4"}


def test_a_bound_process_gets_cpus_and_sees_the_gpus_that_it_asked_for(bounds: Bounds) -> None:
    given = bounds.give(start("Process-1", cpus=2, gpus=1))
    assert (given.cpu_numbers, given.environment) == ((0, 1), {VISIBLE: "4"})
    none = bounds.give(start("Process-2", cpus=1.5))
    assert (none.cpu_numbers, none.environment) == ((2, 3), {VISIBLE: ""})
    bounds.take_back(given.id)
    assert bounds.give(start("Process-3", cpus=1)).cpu_numbers == (0,)


def test_a_process_that_is_not_bound_shares_what_there_is(bounds: Bounds) -> None:
    asked = start("pool-1.0", cpus=2, bounded=False)
    assert bounds.give(asked) == asked


def test_gpus_that_a_process_names_itself_are_its_own_affair(bounds: Bounds) -> None:
    asked = start(gpus=3, environment={VISIBLE: "0,1,2"})
    assert bounds.refusal(asked) == "" and bounds.give(asked).environment == asked.environment


def test_a_host_without_gpus_hides_none() -> None:
    bounds = Bounds("n1", Cpus(()), Gpus({}, NONE, NONE), num_cpus=1, memory_bytes=GIB)
    given = bounds.give(start())
    assert (given.environment, given.cpu_numbers) == ({}, ()), "and binds to no CPU where that is impossible"
    assert bounds.refusal(start(gpus=1, bounded=False)) == "", "it may find GPUs that the host does not know of"


def test_gpus_are_counted_by_their_driver_or_else_by_their_device_files(tmp_path: Path) -> None:
    for name in ("driver/0000:01:00.0", "devices/nvidia0", "devices/nvidia1", "devices/nvidiactl"):
        (tmp_path / name).mkdir(parents=True)
    driver, devices = tmp_path / "driver", tmp_path / "devices"
    assert Gpus({}, driver, devices).count == 1
    assert Gpus({}, NONE, devices).count == 2
    assert Gpus({VISIBLE: ""}, driver, devices).count == 0


def test_this_machine_gives_what_it_has() -> None:
    given = Bounds.here("n1").give(start(cpus=1))
    assert len(given.cpu_numbers) == 1
