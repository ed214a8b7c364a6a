"""Processes that compute beside a measured one do so until it is measured, and no longer."""

from __future__ import annotations

import gc
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from ropewalk.errors import NotPicklable, ProfileInvalid
from ropewalk.pipeline.profiling_load import computing_beside
from ropewalk.sharing.connections import Connection
from tests.patience import wait_until


def test_other_processes_compute_over_and_over_until_the_block_ends(tmp_path: Path) -> None:
    def counts() -> dict[int, int]:
        return {int(file.name): file.stat().st_size for file in tmp_path.iterdir()}

    with computing_beside(2, partial(_count, tmp_path)):
        first = counts()
        assert len(first) == 2 and os.getpid() not in first and min(first.values()) >= 1
        wait_until(lambda: all(counts()[pid] > num + 2 for pid, num in first.items()))
    after = counts()
    time.sleep(0.05)
    assert counts() == after


def test_a_process_that_fails_in_its_first_computation_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ProfileInvalid, match=r"beside the measured one ended: beside-0 .*ValueError: no weights"),
        computing_beside(1, _fail),
    ):
        raise AssertionError("the block began")


def test_a_process_that_cannot_be_started_leaves_no_pipe_open() -> None:
    def open_pipes() -> list[str]:
        gc.collect()
        return [repr(one) for one in gc.get_objects() if type(one) is Connection and not one.closed]

    before = open_pipes()
    with pytest.raises(NotPicklable) as caught, computing_beside(1, partial(print, threading.Lock())):
        raise AssertionError("the block began")
    assert caught.tb, "the frames of the error hold what was made in them"
    assert open_pipes() == before


def test_a_process_that_dies_while_the_block_runs_spoils_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(ProfileInvalid, match=r"ended: beside-0 .*SIGKILL"):
        _measure_until_one_dies(tmp_path)


def _measure_until_one_dies(folder: Path) -> None:
    with computing_beside(1, partial(_die_later, folder)):
        (folder / "die").touch()
        wait_until(lambda: (folder / "done").exists())


def _count(folder: Path) -> None:
    with (folder / str(os.getpid())).open("a") as file:
        file.write(".")


def _fail() -> None:
    raise ValueError("no weights")


def _die_later(folder: Path) -> None:
    if (folder / "die").exists():
        (folder / "done").touch()
        os.kill(os.getpid(), 9)
