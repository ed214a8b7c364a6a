"""The panel "tree" has every environment with its parent, and what a user's description does is no danger."""

from __future__ import annotations

from typing import Any

import numpy as np

from ropewalk.population.open_ended.bouts import AgentEnvPair
from ropewalk.population.open_ended.lineage import AgentTransfer, Lineage
from ropewalk.population.panels.tree import EnvironmentTreePanel


def lineage() -> Lineage:
    made = Lineage()
    made.add({"rough": 0}, None, 0)
    made.add({"rough": 1}, 0, 3)
    made.scored(0, 50.0)
    made.branches[0].retired = 7
    made.transfers.append(AgentTransfer(5, 0, 1, True))
    return made


def test_environments_have_parents_times_and_scores() -> None:
    pairs = [AgentEnvPair(1, {"rough": 1}, np.zeros(1, np.float32), 12.0)]
    data = EnvironmentTreePanel(lineage(), lambda one: f"rough {one['rough']}").data(pairs, 9)
    first, second = data["environments"]
    assert (first["parent"], first["born"], first["retired"], first["best"], first["score"]) == (None, 0, 7, 50.0, None)
    assert (second["parent"], second["born"], second["retired"], second["best"], second["score"]) == (
        *(0, 3, None),
        *(None, 12.0),
    )
    assert (first["label"], second["label"], data["generation"]) == ("rough 0", "rough 1", 9)
    assert data["transfers"] == [{"generation": 5, "source": 0, "target": 1, "fine_tuned": True}]


def test_each_environment_is_described_once() -> None:
    asked: list[Any] = []
    made = lineage()
    panel = EnvironmentTreePanel(made, lambda one: str(asked.append(one)))
    panel.data([], 1)
    made.add({"rough": 2}, 1, 4)
    panel.data([], 2)
    assert asked == [{"rough": 0}, {"rough": 1}, {"rough": 2}]


def test_a_description_that_raises_or_is_long_hides_nothing() -> None:
    def describe(one: dict[str, int]) -> str:
        return "x" * (1000 // one["rough"])

    labels = [each["label"] for each in EnvironmentTreePanel(lineage(), describe).data([], 1)["environments"]]
    assert labels == ["{'rough': 0}", "x" * 80]
