"""The genetic algorithm on the lander: the same for any number of workers, resumed from its checkpoint."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("Box2D")
pytest.importorskip("matplotlib")
np = pytest.importorskip("numpy")
LoadExample = Callable[[str], types.ModuleType]
pytestmark = pytest.mark.usefixtures("shared_session")

SMALL = ["--population", "5", "--json"]


@pytest.fixture
def example(load_example: LoadExample) -> types.ModuleType:
    return load_example("ga_lunar_lander")


def test_a_flight_is_the_same_whatever_was_flown_before(example: types.ModuleType) -> None:
    rng = np.random.default_rng(2)
    policies = [rng.standard_normal(example.SIZE) for _ in range(4)]
    forwards = [example.fly(policies[seed], seed) for seed in range(4)]
    backwards = [example.fly(policies[seed], seed) for seed in reversed(range(4))]
    assert forwards == backwards[::-1]
    assert len({total for total, _ in forwards}) == 4


def test_it_evolves_and_draws_flights(
    example: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "drawn" / "lander.png"
    assert example.main([*SMALL, "--generations", "1", "--workers", "1", "--picture", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("LunarLander-v3: Genetic: ") and len(json.loads(lines[-1])["means"]) == 1
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.soak  # 4 s of CPU time, for what the walker and tests of the algorithm show by default
def test_a_run_in_two_parts_on_other_workers_is_the_unbroken_run(
    example: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def summary(*arguments: str) -> dict[str, Any]:
        assert example.main([*SMALL, *arguments]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    whole = summary("--generations", "2", "--workers", "2", "--picture", "")
    folder = ["--checkpoint", str(tmp_path / "runs"), "--workers", "1", "--picture", ""]
    summary("--generations", "1", *folder)
    parts = summary("--generations", "2", *folder)
    del whole["launcher_ms"], parts["launcher_ms"]
    assert parts == whole and len(whole["means"]) == 2
