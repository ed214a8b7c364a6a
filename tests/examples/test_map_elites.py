"""The arm reaches nearly everywhere, evenly bent, and the picture is drawn."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numpy")
LoadExample = Callable[[str], types.ModuleType]
pytestmark = pytest.mark.usefixtures("shared_session")


def test_the_arm_reaches_most_places_whatever_the_number_of_workers(load_example: LoadExample) -> None:
    example = load_example("map_elites")
    one, two = (example.main(workers=workers, generations=15).algorithm.archive for workers in (1, 2))
    assert one.coverage > 0.6  # a disc has 0.785 of the square
    assert np.median(one.fitnesses) > -0.2  # of random arms: -0.7
    np.testing.assert_array_equal(one.solutions, two.solutions)


def test_the_file_runs_and_draws_its_picture(run_file: Callable[..., list[str]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws the picture; pip install matplotlib")
    arguments = ["--generations", "3", "--niches", "40", "--picture", "drawn/arm.png"]
    assert run_file("map_elites", *arguments)[0].startswith("600 evaluations found ways to ")
    assert (tmp_path / "drawn/arm.png").stat().st_size > 5000
