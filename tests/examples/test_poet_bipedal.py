"""Courses and walkers: a lineage comes out, and the same one for any number of workers."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("Box2D")
pytest.importorskip("matplotlib")
LoadExample = Callable[[str], types.ModuleType]
pytestmark = pytest.mark.usefixtures("shared_session")


def test_courses_descend_from_flat_ground_and_are_drawn(load_example: LoadExample, tmp_path: Path) -> None:
    picture = tmp_path / "drawn" / "lineage.png"
    run = load_example("poet_bipedal").main(
        ["--iterations", "7", "--pairs", "2", "--steps", "15", "--workers", "1", "--picture", str(picture)]
    )
    [flat, child] = run.algorithm.lineage.branches
    assert (flat.parent, child.parent) == (None, 0) and child.environment != flat.environment
    assert picture.stat().st_size > 5_000


def test_the_policy_of_the_paper_has_its_number_of_parameters(load_example: LoadExample) -> None:
    example = load_example("poet_bipedal")
    assert example.num_parameters(example.PAPER) == 2_804
    parameters = np.arange(example.num_parameters((2, 3, 1)))
    [(first, bias), (second, last)] = example.Walk((2, 3, 1), 1)._layers(parameters)
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]] and bias.tolist() == [6, 7, 8]
    assert second.tolist() == [[9], [10], [11]] and last.tolist() == [12]


def test_parameters_of_zero_stand_still(load_example: LoadExample) -> None:
    from ropewalk.population import Trial
    from ropewalk.testing.walker_terrain import FLAT

    outcome = load_example("poet_bipedal").Walk((24, 4), 20)(np.zeros(100), FLAT, Trial(3))
    assert outcome.steps == 20 and abs(outcome.fitness) < 5
