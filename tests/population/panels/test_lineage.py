"""The panel "lineage" has every copy of population based training, and from whom the members of now descend."""

from __future__ import annotations

from ropewalk.population.algorithms.pbt_history import History
from ropewalk.population.algorithms.pbt_member import Interval
from ropewalk.population.algorithms.pbt_standing import MemberStanding
from ropewalk.population.panels.lineage import PBTLineagePanel
from tests.population.panels.test_schedules import history


def test_a_copy_has_both_members_with_their_steps_and_scores() -> None:
    members = [MemberStanding({}, number=2, steps=20, score=3.0, last=2), MemberStanding({}, 1, 10, 2.0, 1)]
    data = PBTLineagePanel(history()).data(members, 2)
    (copy,) = data["copies"]
    assert (copy["member"], copy["step"], copy["score"], copy["interval"]) == (0, 10, 1.0, 1)
    assert (copy["donor"], copy["donor_step"], copy["donor_score"]) == (1, 10, 2.0)
    assert copy["reason"] == "exploit" and copy["after"] == {"rate": 0.16}
    assert data["members"]["0"] == {"step": 20, "score": 3.0, "intervals": 2, "origin": 1}
    assert data["members"]["1"]["origin"] == 1
    assert data["best"]["path"] == [[1, 0, 10], [0, 10, 20]]


def test_a_member_that_has_not_trained_is_its_own_origin() -> None:
    data = PBTLineagePanel(History(0)).data([MemberStanding({})], -1)
    assert data["members"]["0"] == {"step": 0, "score": None, "intervals": 0, "origin": 0}
    assert data["best"]["path"] == [] and data["copies"] == []


def test_after_a_cursor_only_new_copies_come_and_all_members() -> None:
    data = PBTLineagePanel(history()).data([MemberStanding({})], -1, 1)
    assert data["copies"] == [] and data["cursor"] == 1 and data["left"] == 0 and len(data["members"]) == 1


def test_an_origin_is_followed_through_several_members() -> None:
    made = history()
    last = made.add(Interval(2, 1, 20, 10, {"rate": 0.2}, None, 0), 10, 9.0, 2)  # it has copied 0, which had copied 1
    last = made.add(Interval(2, 2, 30, 10, {"rate": 0.2}, None, 0), 10, 9.5, last)
    data = PBTLineagePanel(made).data([MemberStanding({}, number=3, steps=40, score=9.5, last=last)], last)
    assert data["members"]["0"]["origin"] == 1
    assert data["best"]["path"] == [[1, 0, 10], [0, 10, 20], [2, 20, 40]]
