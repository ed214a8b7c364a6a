"""The panel "fitness" has the numbers of the table, and after a cursor only those of later generations."""

from __future__ import annotations

import math

from ropewalk.population.panels.fitness import fitness_panel
from ropewalk.population.rows import Row


def row(generation: int, **more: float) -> Row:
    numbers = {"min": 1.0, "lower_quartile": 2.0, "median": 3.0, "upper_quartile": 4.0, "max": 5.0, "mean": 3.1}
    return {"generation": generation, "evaluations": 8.0 * generation, **numbers, "best": 6.0, **more}


def test_each_generation_is_a_point_of_every_column() -> None:
    data = fitness_panel([row(1), row(2, median=3.5, test=7.0)])
    assert data["cursor"] == 2
    assert data["generation"] == [1, 2] and data["evaluations"] == [8, 16]
    assert data["median"] == [3, 3.5] and data["worst"] == [1, 1] and data["best"] == [5, 5]
    assert data["lower_quartile"] == [2, 2] and data["upper_quartile"] == [4, 4] and data["best_so_far"] == [6, 6]
    assert data["test"] == [None, 7.0]


def test_after_a_cursor_only_new_generations_come() -> None:
    rows = [row(1), row(2)]
    assert fitness_panel(rows, 1)["generation"] == [2]
    assert fitness_panel(rows, 2) == {name: 2 if name == "cursor" else [] for name in fitness_panel(rows)}


def test_an_infinite_fitness_and_a_row_of_an_older_version_have_gaps() -> None:
    old = row(1, min=-math.inf)
    del old["median"]
    data = fitness_panel([old])
    assert data["worst"] == [None] and data["median"] == [None] and data["best"] == [5]


def test_of_a_long_run_points_at_equal_distances_come() -> None:
    data = fitness_panel([row(number) for number in range(1, 10_001)])
    assert len(data["generation"]) <= 2000 and data["generation"][-1] == 10_000 and data["cursor"] == 10_000
