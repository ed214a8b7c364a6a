from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk.pipeline.plans import Plan, PlanWorker, Stage
from ropewalk.pipeline.stages.batch_norm import Moments
from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, InMemorySums, SumKey
from ropewalk.training.link_sums import LinkSums
from ropewalk.training.links import ProcessLinks
from ropewalk.training.near_links import NearLinks
from tests.transport.claimed_slots import num_claimed

#: Stages 0 and 3 share workers, of which there are two; stage 2 has three replicas.
PLAN = Plan(
    (
        Stage(0, ("a",), (0, 1)),
        Stage(1, ("b",), (2,)),
        Stage(2, ("c",), (3, 4, 5)),
        Stage(3, ("d",), (0, 1)),
    )
)
REPLICAS = SumKey("replicas of stage 2", (Contributor(2, 0), Contributor(2, 1), Contributor(2, 2)), 1)
TIED = SumKey(
    "tied w", (Contributor(0, 0), Contributor(0, 1), Contributor(1, 0), Contributor(3, 0), Contributor(3, 1)), None
)


class Everybody:
    """All workers of the plan in this process."""

    def __init__(self) -> None:
        self.links = {worker: ProcessLinks(0, worker, PLAN) for worker in PLAN.workers}
        endpoints = {worker: links.endpoint() for worker, links in self.links.items()}
        for links in self.links.values():
            links.connect(endpoints)
        self.sums = {worker: LinkSums(links) for worker, links in self.links.items()}

    def of(self, member: Contributor) -> LinkSums:
        return self.sums[PlanWorker(PLAN.placement[member.stage], member.replica)]

    def close(self) -> None:
        for links in self.links.values():
            links.close()


def contribution(member: Contributor, *, has_gradient: bool = True) -> GradientContribution:
    draw = torch.Generator().manual_seed(7 * member.stage + member.replica)
    moments = Moments(3, torch.rand(2, generator=draw).double(), torch.rand(2, generator=draw).double())
    gradients: Mapping[str, Tensor | None] = {
        "w": torch.rand(50, generator=draw) if has_gradient else None,
        "b": torch.rand((), generator=draw),
        "never": None,
    }
    return GradientContribution(gradients, 1.5 + member.replica, {"norm": moments})


def assert_equal(left: GradientContribution, right: GradientContribution) -> None:
    assert left.weight == right.weight and list(left.gradients) == list(right.gradients)
    for name, gradient in left.gradients.items():
        other = right.gradients[name]
        assert (gradient is None) == (other is None)
        assert gradient is None or other is None or torch.equal(gradient, other)
    for name, moments in left.moments.items():
        other_moments = right.moments[name]
        assert moments.count == other_moments.count
        assert torch.equal(moments.mean, other_moments.mean) and torch.equal(moments.spread, other_moments.spread)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([REPLICAS, TIED]), st.data())
def test_sums_are_those_of_one_process_to_the_bit_whoever_comes_first(key: SumKey, data: st.DataObject) -> None:
    order = data.draw(st.permutations(key.members))
    without = data.draw(st.sets(st.sampled_from(key.members)))
    everybody, one = Everybody(), InMemorySums()
    for member in order:
        assert member in everybody.of(member).missing(key)
        everybody.of(member).contribute(key, member, contribution(member, has_gradient=member not in without))
        one.contribute(key, member, contribution(member, has_gradient=member not in without))
    for member in key.members:
        assert not everybody.of(member).missing(key)
        assert_equal(everybody.of(member).take(key, member), one.take(key, member))
    everybody.close()


def test_whoever_is_missing_is_named_in_order() -> None:
    everybody = Everybody()
    everybody.of(Contributor(2, 1)).contribute(REPLICAS, Contributor(2, 1), contribution(Contributor(2, 1)))
    assert everybody.of(Contributor(2, 0)).missing(REPLICAS) == [Contributor(2, 0), Contributor(2, 2)]
    everybody.close()


def test_each_member_of_a_worker_may_change_what_it_took() -> None:
    everybody = Everybody()
    for member in TIED.members:
        everybody.of(member).contribute(TIED, member, contribution(member))
    sums = everybody.of(Contributor(0, 0))
    assert not sums.missing(TIED)
    first, second = sums.take(TIED, Contributor(0, 0)), sums.take(TIED, Contributor(3, 0))
    expected = contribution(Contributor(0, 0)).gradients["b"]
    for gradient in first.gradients.values():
        if gradient is not None:
            gradient.zero_()
    found = second.gradients["b"]
    assert found is not None and expected is not None and found > expected
    everybody.close()


def test_one_message_goes_to_each_other_worker() -> None:
    everybody = Everybody()
    everybody.of(Contributor(1, 0)).contribute(TIED, Contributor(1, 0), contribution(Contributor(1, 0)))
    sent = {worker: traffic.messages for worker, traffic in everybody.links[PlanWorker(1, 0)].traffic.items()}
    assert sent == {
        PlanWorker(0, 0): 1,
        PlanWorker(0, 1): 1,
        PlanWorker(2, 0): 0,
        PlanWorker(2, 1): 0,
        PlanWorker(2, 2): 0,
    }
    everybody.close()


def test_what_was_contributed_may_change_afterwards_for_the_others() -> None:
    everybody = Everybody()
    parts = {member: contribution(member) for member in REPLICAS.members}
    for member, part in parts.items():
        everybody.of(member).contribute(REPLICAS, member, part)
    expected = sum(float(gradient) for part in parts.values() if (gradient := part.gradients["b"]) is not None)
    mine = parts[Contributor(2, 0)].gradients["b"]
    assert mine is not None
    mine.zero_()
    assert not everybody.of(Contributor(2, 1)).missing(REPLICAS)
    found = everybody.of(Contributor(2, 1)).take(REPLICAS, Contributor(2, 1)).gradients["b"]
    assert found is not None and float(found) == pytest.approx(expected)
    everybody.close()


def test_memory_of_a_sum_is_given_back_when_it_was_taken() -> None:
    everybody = Everybody()
    for version in range(20):
        key = REPLICAS._replace(version=version)
        for member in key.members:
            everybody.of(member).contribute(key, member, contribution(member))
        for member in key.members:
            assert not everybody.of(member).missing(key)
            everybody.of(member).take(key, member)
    for links in everybody.links.values():
        near = links._transports["memory"]
        assert isinstance(near, NearLinks)
        assert not num_claimed(near.memory)
    everybody.close()
