"""The picture has every interval thin, and those of the best state thick."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="draws pictures; pip install matplotlib")

from ropewalk.population.algorithms.pbt import PBT
from ropewalk.population.hyperparameters import Choice, LogUniform, Uniform
from ropewalk.population.outcome import Outcome
from ropewalk.population.pictures.schedule import draw_schedule


def trained() -> PBT:
    space = {"rate": LogUniform(1e-4, 1.0), "dropout": Uniform(0, 0.5), "layers": Choice(["one", "two"]), "batch": 32}
    first = [{"rate": 1e-3, "dropout": 0.1, "layers": "one", "batch": 32}]
    first.append({"rate": 0.9, "dropout": 0.2, "layers": "two", "batch": 32})
    algorithm = PBT(space, population=4, interval=2, synchronous=True, initial=first)
    for round_ in range(5):
        asked = algorithm.ask(4)
        algorithm.tell(asked, [Outcome(round_ + each.member + each.hyperparameters["rate"]) for each in asked])
    return algorithm


def test_scores_and_every_hyperparameter_that_changes_are_drawn_over_steps(tmp_path: Path) -> None:
    algorithm = trained()
    figure = draw_schedule(algorithm.history, algorithm.schedule(), tmp_path / "schedule.png")
    assert [axes.get_ylabel() for axes in figure.axes] == ["score", "rate", "dropout", "layers"]
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "log", "linear", "linear"]
    assert [label.get_text() for label in figure.axes[3].get_yticklabels()] == ["one", "two"]
    thin, thick = figure.axes[1].collections
    assert len(thin.get_paths()) == len(algorithm.history) == 20
    drawn = [tuple(point) for point in thick.get_paths()[0].vertices.tolist()]  # pyright: ignore
    schedule = algorithm.schedule()
    assert drawn[:2] == [(0.0, schedule.stretches[0].hyperparameters["rate"]), (2.0, drawn[0][1])]
    assert drawn[-1] == (10.0, schedule.stretches[-1].hyperparameters["rate"])
    assert figure.axes[0].get_xlim()[0] <= 2 and figure.axes[0].get_xlim()[1] >= 10
    assert (tmp_path / "schedule.png").read_bytes().startswith(b"\x89PNG")


def test_a_member_that_diverges_does_not_flatten_the_scores_of_the_others() -> None:
    algorithm = PBT({"rate": Uniform(0, 1)}, population=12, interval=2, synchronous=True)
    for round_ in range(3):
        asked = algorithm.ask(12)
        scores = [-1e9 if each.member == 2 else -math.inf if each.member == 3 else round_ for each in asked]
        algorithm.tell(asked, [Outcome(score) for score in scores])
    low, high = draw_schedule(algorithm.history, algorithm.schedule()).axes[0].get_ylim()
    assert -1 < low < 0 < 2 < high < 3


def test_nothing_is_drawn_before_something_was_trained() -> None:
    algorithm = PBT({"rate": Uniform(0, 1)}, population=2)
    with pytest.raises(ValueError, match="there is nothing to draw: 0 intervals, 0 of them in the schedule"):
        draw_schedule(algorithm.history, algorithm.schedule())
