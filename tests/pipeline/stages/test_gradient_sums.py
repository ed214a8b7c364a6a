"""Sums do not depend on who comes first."""

from __future__ import annotations

import itertools

import torch

from ropewalk.pipeline.stages.batch_norm import Moments
from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, InMemorySums, SumKey

MEMBERS = tuple(Contributor(2, replica) for replica in range(3))
KEY = SumKey("replicas of stage 2", MEMBERS, 1)


def contribution(member: Contributor) -> GradientContribution:
    value = torch.tensor([1e8, -1e8, 1.0][member.replica])
    return GradientContribution(
        {"w": value.clone(), "unused": None}, float(member.replica), {"norm": Moments(2, value, value * 0)}
    )


def test_everybody_gets_the_same_sum_in_whichever_order_they_come() -> None:
    found: set[tuple[float, ...]] = set()
    for order in itertools.permutations(MEMBERS):
        sums = InMemorySums()
        for position, member in enumerate(order):
            assert set(sums.missing(KEY)) == set(order[position:])
            sums.contribute(KEY, member, contribution(member))
        assert sums.missing(KEY) == ()
        for member in order:
            total = sums.take(KEY, member)
            assert total.gradients["unused"] is None
            assert total.weight == 3
            assert total.moments["norm"].count == 6
            weight = total.gradients["w"]
            assert weight is not None
            found.add((float(weight),))
            weight.zero_()  # what one does with it is no matter of the others
    assert found == {(1.0,)}, "in the order of the members; in others the 1 is lost"


def test_a_member_without_micro_batches_adds_nothing() -> None:
    some, none = GradientContribution({"w": torch.ones(1)}, 2.0), GradientContribution({"w": None})
    for total in (some + none, none + some):
        assert total.weight == 2.0
        assert total.gradients["w"] is some.gradients["w"]
