"""A lineage is drawn as a tree that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from ropewalk.population.open_ended.lineage import AgentTransfer, Lineage
from ropewalk.population.pictures.lineage import draw_lineage
from ropewalk.population.tree_rows import tree_rows


def a_lineage() -> Lineage:
    lineage = Lineage()
    for parent, born in [(None, 0), (0, 10), (0, 20), (1, 25), (2, 30)]:
        lineage.add({"born": born}, parent, born).score = 100.0 + born
    lineage.branches[0].retired = 30
    lineage.transfers += [AgentTransfer(25, 1, 0, fine_tuned=False), AgentTransfer(28, 2, 1, fine_tuned=True)]
    return lineage


def test_children_stand_below_their_parents_and_the_youngest_next_to_them() -> None:
    rows = tree_rows((branch.number, branch.parent) for branch in a_lineage().branches)
    assert sorted(rows, key=rows.__getitem__) == [0, 2, 4, 1, 3]


def test_a_branch_lasts_from_its_birth_until_it_made_room(tmp_path: Path) -> None:
    figure = draw_lineage(a_lineage(), tmp_path / "lineage.png", describe=lambda one: f"born {one['born']}", until=50)
    axes = figure.axes[0]
    [lines] = axes.collections
    lives = [(start[0], end[0]) for start, end in lines.get_segments()]  # pyright: ignore[reportAttributeAccessIssue]
    assert lives == [(0, 30), (10, 50), (20, 50), (25, 50), (30, 50)]
    words = dict(zip(axes.get_yticks(), (text.get_text() for text in axes.get_yticklabels()), strict=True))
    assert words == {0: "born 0", 1: "born 20", 2: "born 30", 3: "born 10", 4: "born 25"}
    assert len([text for text in axes.texts if not text.get_text()]) == 2  # the arrows
    assert (tmp_path / "lineage.png").stat().st_size > 5_000


def test_the_first_environment_alone_can_be_drawn() -> None:
    lineage = Lineage()
    lineage.add("flat", None, 0)
    assert len(draw_lineage(lineage).axes[0].collections) == 1


def test_hundreds_of_environments_are_drawn_without_words() -> None:
    lineage = Lineage()
    for born in range(100):
        lineage.add(born, born - 1 if born else None, born)
    figure = draw_lineage(lineage)
    assert figure.axes[0].get_yticklabels() == [] and figure.get_size_inches()[1] <= 30
