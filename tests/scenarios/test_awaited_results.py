"""Coroutines that await results of a pool, and are cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.errors import TaskCancelled
from tests.patience import wait_until
from tests.scenarios.tasks import note, noted, wait_for_file

pytestmark = pytest.mark.usefixtures("shared_session")


def begin(folder: Path, name: str) -> str:
    note(str(folder / "begun"), name)
    wait_for_file(str(folder / "go"))
    return name


async def cancel_await(result: Any) -> None:
    async def wait() -> None:
        await result

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_call_that_has_not_begun_is_cancelled_with_its_coroutine_and_one_that_runs_goes_on(tmp_path: Path) -> None:
    # As with `loop.run_in_executor`: all calls ran, though nobody could ask for their results.
    with rw.Pool(1) as pool:
        results = [pool.apply_async(begin, (tmp_path, name)) for name in ("runs", "waits", "wanted")]
        wait_until(lambda: noted(str(tmp_path / "begun")))
        asyncio.run(cancel_await(results[0]))
        asyncio.run(cancel_await(results[1]))
        with pytest.raises(TaskCancelled, match="the coroutine that awaited this result was cancelled"):
            results[1].get()
        (tmp_path / "go").touch()
        assert [results[at].get() for at in (0, 2)] == ["runs", "wanted"]
        assert noted(str(tmp_path / "begun")) == ["runs", "wanted"]


def test_no_further_task_of_a_map_begins_when_its_coroutine_is_cancelled(tmp_path: Path) -> None:
    with rw.Pool(1) as pool:
        result = pool.starmap_async(begin, [(tmp_path, number) for number in range(50)], 1)
        wait_until(lambda: noted(str(tmp_path / "begun")))
        asyncio.run(cancel_await(result))
        (tmp_path / "go").touch()
        with pytest.raises(TaskCancelled):
            result.get()
        assert pool.apply(begin, (tmp_path, "next")) == "next"
        assert noted(str(tmp_path / "begun")) == ["0", "next"]


def test_a_coroutine_that_is_cancelled_behind_a_shield_cancels_no_call(tmp_path: Path) -> None:
    with rw.Pool(1) as pool:
        running, waits = (pool.apply_async(begin, (tmp_path, name)) for name in ("runs", "waits"))

        async def wait() -> None:
            await asyncio.shield(waits)

        async def main() -> str:
            await cancel_await(wait())
            (tmp_path / "go").touch()
            return await waits

        assert (asyncio.run(main()), running.get()) == ("waits", "runs")
