"""adaptive's runner over our executor: the points are where the curve bends."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import types
from collections.abc import Callable

import pytest

LoadExample = Callable[[str], types.ModuleType]

if not importlib.util.find_spec("adaptive"):  # which imports all of scipy.stats: for the test, not for the collection
    pytest.skip("could not import 'adaptive'", allow_module_level=True)


@pytest.fixture(autouse=True)
def _nothing_for_good(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    # Its import gives the whole process uvloop's event loops; the first of them opens a pipe that is never closed.
    monkeypatch.setattr(asyncio, "set_event_loop_policy", lambda _policy: None, raising=False)
    runner = importlib.import_module("adaptive.runner")
    # Where mpi4py is installed, adaptive starts MPI to learn whether this is its executor, and nothing ever ends that.
    monkeypatch.setattr(runner, "with_mpi4py", False)


def test_points_gather_at_the_peak_and_bear_its_values(
    load_example: LoadExample, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load_example("executor_adaptive")
    monkeypatch.setattr(example, "WORKERS", 1)  # each imports adaptive: a second of CPU time
    data = example.main()
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert 60 <= len(data) < 80
    assert all(value == example.peak(x) for x, value in data.items())
    near = [x for x in data if abs(x - example.OFFSET) < 5 * example.WIDTH]
    assert len(near) > len(data) / 3  # a grid would have a tenth of its points there


@pytest.mark.soak  # the same once more
def test_the_file_runs(run_file: Callable[..., list[str]]) -> None:
    assert len(run_file("executor_adaptive")) == 2
