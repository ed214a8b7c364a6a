"""What the stages of a plan exchange besides values: the state of the random generator.

Random numbers follow the order of the stages, so each stage that draws some needs the state that the one before it has
left. The state is sent with the first edge that joins the two; if none does (they are in two branches), it gets an edge
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ropewalk.pipeline.plans import Edge, Plan

STATE_BYTES = 5056
"""Bytes of the state of torch's generator on the CPU (on CUDA it is 16)."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """A plan with all its edges, and the edges that carry the generator's state."""

    plan: Plan
    state_comes_on: Mapping[int, str]
    """For each random stage but the first: the edge that brings the state."""
    state_goes_on: Mapping[int, tuple[str, int]]
    """For each random stage but the last: the edge that takes the state on, and the next random stage."""


def wire(plan: Plan, random_stages: Iterable[int]) -> Wiring:
    """Find the route of the generator's state through the stages that draw random numbers."""
    chain = sorted(random_stages)
    comes: dict[int, str] = {}
    goes: dict[int, tuple[str, int]] = {}
    extra: list[Edge] = []
    for source, target in pairwise(chain):
        joining = [edge.tensor for edge in plan.edges if edge.source == source and target in edge.targets]
        if joining:
            tensor = joining[0]
        else:
            tensor = f"generator.{source}"
            extra.append(Edge(tensor, source, (target,), STATE_BYTES, 0))
        comes[target] = tensor
        goes[source] = tensor, target
    wired = replace(plan, edges=(*plan.edges, *extra)) if extra else plan
    return Wiring(wired, comes, goes)
