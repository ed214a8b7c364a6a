"""Evolution strategies on the two-legged walker: the same for any number of workers, resumed from its checkpoint."""

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

SMALL = ["--population", "4", "--max-steps", "40", "--json"]


@pytest.fixture
def example(load_example: LoadExample) -> types.ModuleType:
    return load_example("es_bipedal")


def test_an_episode_is_the_same_whatever_was_played_before(example: types.ModuleType) -> None:
    from ropewalk.population import Trial

    rng = np.random.default_rng(2)
    for hardcore, hidden in ((False, 0), (True, 8)):
        policies = [rng.standard_normal(example.num_parameters(hidden)) * 0.3 for _ in range(4)]
        arguments = {"hardcore": hardcore, "hidden": hidden, "max_steps": 150}

        def play(which: int, policies: list[Any] = policies, arguments: Any = arguments) -> tuple[float, int]:
            outcome = example.walk(policies[which], Trial(which), **arguments)
            return outcome.fitness, outcome.steps

        forwards = [play(which) for which in range(4)]
        backwards = [play(which) for which in reversed(range(4))]
        assert forwards == backwards[::-1]
        assert len(set(forwards)) == 4


def test_a_fall_costs_nothing_while_it_learns_and_100_in_a_test(example: types.ModuleType) -> None:
    from ropewalk.population import Trial

    policy = np.ones(example.num_parameters(0))  # falls over its own feet
    outcome, tested = (example.walk(policy, Trial(3, is_test=is_test), max_steps=400) for is_test in (False, True))
    assert outcome.steps == tested.steps < 400
    assert outcome.fitness == pytest.approx(tested.fitness + 100)


def test_a_run_in_two_parts_on_other_workers_is_the_unbroken_run(
    example: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def summary(*arguments: str) -> dict[str, Any]:
        assert example.main([*SMALL, *arguments]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    picture = tmp_path / "drawn" / "curve.png"
    whole = summary("--generations", "2", "--workers", "2", "--picture", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    folder = ["--checkpoint", str(tmp_path / "runs"), "--workers", "1", "--picture", ""]
    summary("--generations", "1", *folder)
    parts = summary("--generations", "2", *folder)
    del whole["launcher_ms"], parts["launcher_ms"]
    assert parts == whole and len(whole["means"]) == 2
