"""Gradients of replicas summed through an exchange: all-reduce, a parameter server, GD-SEC.

    contribution of a replica ─┬─ gradients: the mean of its own samples ──▶ Exchange ──▶ the mean of all
                               └─ weight, moments, which have a gradient ──▶ Sums ──────▶ their sums

Only sums between replicas of one stage go through an exchange, and of those only the gradients that an exchange
averages. Copies of tied parameters, norms and moments are summed as without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.exchange import Exchange, StepRecord
from ropewalk.exchange.exchange_maker import MakesExchange, made_exchange
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.groups.thread_group import ThreadGroup
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, SumKey, Sums
from ropewalk.pipeline.stages.running_stage import RunningStage

_FACTS = ""
"""The name under which counts are summed: for each parameter how many replicas have a gradient, then the samples."""


@dataclass(frozen=True, slots=True)
class ReplicaExchange:
    """The exchange of one stage on one replica, bound to its parameters and the group of its replicas."""

    exchange: Exchange
    parameters: Mapping[str, nn.Parameter]

    @classmethod
    def bind(cls, exchange: Exchange, stage: RunningStage, plan: Plan, group: Group) -> ReplicaExchange | None:
        """Bind an exchange to the parameters that a stage sums over its replicas; return None if there are none.

        Raises:
            ExchangeInvalid: the members of the group are not the stage's replicas.
        """
        replicas = plan.stages[stage.setup.id].replicas
        if (group.size, group.rank) != (replicas, stage.setup.replica):
            raise ExchangeInvalid(
                f"stage {stage.setup.id}, replica {stage.setup.replica} of {replicas}, was given rank {group.rank} of "
                f"a group of {group.size}; the group of a stage has its replicas as ranks"
            )
        tied = {tie.parameter for tie in plan.tied if stage.setup.id in tie.stages}
        parameters = {
            name: parameter
            for name, parameter in stage.versions.parameters.items()
            if parameter.requires_grad and name not in tied
        }
        if replicas == 1 or not parameters:
            return None
        exchange.bind(parameters.items(), group)
        return cls(exchange, parameters)


@dataclass(slots=True)
class ExchangeSums:
    """Sums of gradients, those over replicas through exchanges.

    Args:
        sums: for all other sums, and for what exchanges do not carry.
        exchanges: the exchanges of the members in this process.
    """

    sums: Sums
    exchanges: Mapping[Contributor, ReplicaExchange]
    _given: dict[Contributor, dict[str, Tensor]] = field(default_factory=dict[Contributor, dict[str, Tensor]])

    def contribute(self, key: SumKey, member: Contributor, contribution: GradientContribution) -> None:
        """Begin the exchange of a replica's gradients; it continues while others contribute."""
        bound = self._bound(key, member)
        if bound is None:
            self.sums.contribute(key, member, contribution)
            return
        weight, gradients = contribution.weight, contribution.gradients
        has_one = [gradients[name] is not None for name in bound.parameters]
        samples = (1.0 if any(has_one) else 0.0) if weight is None else weight
        device = next(iter(bound.parameters.values())).device
        facts = torch.tensor([*map(float, has_one), samples], dtype=torch.float64, device=device)
        self.sums.contribute(key, member, GradientContribution({_FACTS: facts}, weight, contribution.moments))
        version = key.version or 0
        bound.exchange.begin(StepRecord(step=max(0, version - 1), version=version, samples=samples))
        given = self._given[member] = {}
        for name in reversed(list(bound.parameters)):
            gradient = gradients[name]
            if gradient is None:
                gradient = torch.zeros_like(bound.parameters[name])
            elif weight:
                gradient.div_(weight)
            given[name] = gradient
            bound.exchange.ready(name, gradient)

    def missing(self, key: SumKey) -> Sequence[Contributor]:
        return self.sums.missing(key)

    def take(self, key: SumKey, member: Contributor) -> GradientContribution:
        """Return the total. This waits only for the exchange itself, as all members have contributed.

        Raises:
            MemberLost, ExchangeStalled, ExchangeAborted: the step cannot be completed.
        """
        total = self.sums.take(key, member)
        bound = self._bound(key, member)
        if bound is None:
            return total
        bound.exchange.finish()
        facts, given = total.gradients[_FACTS], self._given.pop(member)
        assert facts is not None
        numbers = cast("list[float]", facts.tolist())  # pyright: ignore[reportUnknownMemberType]
        *num_have, samples = numbers
        gradients = {name: given[name] if num else None for name, num in zip(bound.parameters, num_have, strict=True)}
        if total.weight is not None:
            return GradientContribution(gradients, total.weight, total.moments, means=frozenset(gradients))
        for gradient in gradients.values():  # the loss is a sum, whose gradient is the sum over replicas
            if gradient is not None:
                gradient.mul_(samples)
        return GradientContribution(gradients, None, total.moments)

    def abort(self, epoch: int) -> None:
        """Abort the exchanges that are under way; may be called from any thread."""
        for bound in self.exchanges.values():
            bound.exchange.abort(epoch)

    def close(self) -> None:
        """Close the exchanges; may be called twice."""
        for bound in self.exchanges.values():
            bound.exchange.close()

    def _bound(self, key: SumKey, member: Contributor) -> ReplicaExchange | None:
        return self.exchanges.get(member) if key.is_of_replicas else None


def exchanges_in_one_process(
    plan: Plan, stages: Sequence[RunningStage], make: MakesExchange
) -> dict[Contributor, ReplicaExchange]:
    """Return exchanges for all replicas of all stages, with groups whose members are in this process."""
    groups = {stage.id: ThreadGroup.make(stage.replicas) for stage in plan.stages if stage.replicas > 1}
    found: dict[Contributor, ReplicaExchange] = {}
    for stage in stages:
        id, replica = stage.setup.id, stage.setup.replica
        if id in groups:
            exchange = made_exchange(make)
            if bound := ReplicaExchange.bind(exchange, stage, plan, groups[id][replica]):
                found[Contributor(id, replica)] = bound
    return found
