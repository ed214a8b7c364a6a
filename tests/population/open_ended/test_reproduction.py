"""Environments reproduce if their agents are good enough; what is new and neither too hard nor too easy may stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ropewalk.population.open_ended.bouts import AgentEnvPair
from ropewalk.population.open_ended.reproduction import Child, Reproduction
from tests.population.open_ended.islands import Islands

NOBODY = np.zeros(2, np.float32)


class Stairs(Islands):
    """Children that are one step up or down."""

    def mutate(self, environment: Any, rng: np.random.Generator) -> list[float]:
        return [environment[0] + float(rng.integers(2)), 0.0]


def pair(number: int, x: float, score: float | None) -> AgentEnvPair:
    return AgentEnvPair(number, [x, 0.0], NOBODY, score)


def test_only_environments_of_good_agents_have_children() -> None:
    pairs = [pair(4, 0, 199.0), pair(5, 100, 200.0), pair(6, 200, None)]
    children = Reproduction(children=20).mutations(Islands(), pairs, np.random.default_rng(0))
    assert len(children) == 20 and {child.parent for child in children} == {5}
    assert all(abs(child.environment[0] - 100) < 1.5 for child in children)


def test_without_good_agents_there_are_no_children() -> None:
    assert Reproduction().mutations(Islands(), [pair(0, 0, 100.0)], np.random.default_rng(0)) == []


def test_a_child_that_is_there_already_is_no_child() -> None:
    children = Reproduction(children=50).mutations(Stairs(), [pair(0, 7, 250.0)], np.random.default_rng(0))
    assert children == [Child([8.0, 0.0], 0)]


def test_the_criterion_includes_its_bounds() -> None:
    reproduction = Reproduction(least_score=50, most_score=300)
    assert [reproduction.meets_criterion(score) for score in (None, 49.9, 50, 300, 300.1)] == [
        False, False, True, True, False]  # fmt: skip


def test_the_most_novel_child_comes_first_by_its_nearest_neighbours() -> None:
    others = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [50.0, 0.0]]
    near, far, between = Child([1.5, 0.0], 0), Child([1.0, 9.0], 0), Child([47.0, 0.0], 0)
    rank = Reproduction(neighbours=1).most_novel_first
    assert rank(Islands(), [near, far, between], others) == [far, between, near]
    rank = Reproduction(neighbours=2).most_novel_first
    assert rank(Islands(), [near, far, between], others) == [between, far, near]


def test_attempts_are_due_every_so_many_iterations_but_not_at_the_beginning() -> None:
    assert [generation for generation in range(10) if Reproduction(every=4).is_due(generation)] == [4, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be at least 1, not 0"),
        ({"capacity": 0}, "capacity must be at least 1, not 0"),
        ({"archive_capacity": -1}, "archive_capacity must be 0 or more, not -1"),
        ({"least_score": 3, "most_score": 2}, "least_score must be at most most_score, not 3 and 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reproduction(**arguments)
