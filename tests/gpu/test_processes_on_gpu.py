"""Processes that were given a GPU, and what users do there: tasks, deaths, memory that runs out, DDP over NCCL."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from ropewalk.errors import NotPicklable, StartFailed
from tests.cli.command import ropewalk_alone

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"


def norm(size: int) -> float:
    return torch.ones(size, device="cuda").norm().item()


def visible(_: int) -> tuple[str, int]:
    return os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count()


def on_gpu(size: int) -> torch.Tensor:
    return torch.ones(size, device="cuda")


def too_large(_: int) -> None:
    torch.empty(1 << 42, dtype=torch.uint8, device="cuda")


def dies_once(marker: str) -> float:
    held = torch.ones(1 << 20, device="cuda")
    if not os.path.exists(marker):
        with open(marker, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return held.sum().item()


@rw.requires(gpus=1)
def asks_for_one(found: rw.Queue[tuple[str, int]]) -> None:
    found.put(visible(0))


@rw.requires(gpus=64)
def asks_for_many() -> None:
    raise AssertionError


def test_a_worker_sees_the_gpu_that_it_was_given_and_no_other() -> None:
    with rw.Pool(1, resources=rw.Resources(gpus=1)) as pool:
        name, count = pool.apply(visible, (0,))
        assert name and "," not in name and count == 1
        assert pool.map(norm, [4, 9, 16]) == [2.0, 3.0, 4.0]


def test_a_tensor_on_the_gpu_does_not_leave_its_process_and_the_message_says_what_to_do() -> None:
    with rw.Pool(1) as pool:
        with pytest.raises(Exception, match=r"cuda:0.*\.cpu\(\)"):
            pool.apply(on_gpu, (4,))
        assert pool.apply(norm, (4,)) == 2.0, "the worker goes on"
        with pytest.raises(NotPicklable, match=r"cuda:0.*\.cpu\(\)"):
            pool.apply(torch.sum, (torch.ones(3, device="cuda"),))


def test_memory_of_the_gpu_that_runs_out_is_an_exception_of_the_task_and_the_worker_goes_on() -> None:
    with rw.Pool(1) as pool:
        before = pool.apply(os.getpid)
        with pytest.raises(torch.OutOfMemoryError):
            pool.apply(too_large, (0,))
        assert pool.apply(norm, (4,)) == 2.0 and pool.apply(os.getpid) == before


def test_a_worker_that_dies_gives_its_gpu_back_to_its_successor(tmp_path: Path) -> None:
    with rw.Pool(1, resources=rw.Resources(gpus=1)) as pool:
        assert pool.apply(dies_once, (str(tmp_path / "died"),)) == float(1 << 20)


def test_a_function_that_requires_a_gpu_gets_one_in_its_process() -> None:
    found: rw.Queue[tuple[str, int]] = rw.Queue()
    process = rw.Process(target=asks_for_one, args=(found,))
    process.start()
    name, count = found.get(timeout=120)
    process.join()
    assert name and count == 1
    too_many = rw.Process(target=asks_for_many)
    too_many.start()
    with pytest.raises(StartFailed, match=rf"asks for 64 GPUs.*has {torch.cuda.device_count()} "):
        too_many.join()


def test_a_ddp_script_runs_over_nccl_with_a_gpu_for_each_rank(tmp_path: Path) -> None:
    done = ropewalk_alone("run", "--ranks", "1", "--gpus", "1", str(EXAMPLE), "--", "--epochs", "4", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"epoch \d+: loss (\S+),", done.stdout)]
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_more_ranks_than_gpus_are_refused_with_both_numbers(tmp_path: Path) -> None:
    done = ropewalk_alone("run", "--ranks", "64", "--gpus", "1", str(EXAMPLE), folder=tmp_path)
    assert done.returncode != 0
    assert "64" in done.stderr and str(torch.cuda.device_count()) in done.stderr
