"""The lineage remembers who descends from whom."""

from __future__ import annotations

import json

from ropewalk.population.open_ended.lineage import AgentTransfer, Lineage


def a_lineage() -> Lineage:
    lineage = Lineage()
    for parent, born in [(None, 0), (0, 10), (1, 20), (1, 25)]:
        lineage.add([float(born)], parent, born)
    lineage.transfers.append(AgentTransfer(30, 3, 0, fine_tuned=True))
    return lineage


def test_depth_counts_ancestors() -> None:
    assert [a_lineage().depth(number) for number in range(4)] == [0, 1, 2, 2]


def test_the_best_score_of_a_branch_is_kept() -> None:
    lineage = a_lineage()
    for score in (3.0, None, -1.0):
        lineage.scored(2, score)
    assert [branch.score for branch in lineage.branches] == [None, None, 3.0, None]


def test_a_lineage_comes_back_from_its_state() -> None:
    lineage = a_lineage()
    lineage.branches[0].retired = 31
    assert Lineage.from_state_dict(json.loads(json.dumps(lineage.state_dict()))) == lineage
