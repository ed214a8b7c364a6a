"""Plans for tests that play them: a model cut into stages by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ropewalk.pipeline.plans import Plan, Stage, assemble
from ropewalk.pipeline.tracing.model_graph import ModelGraph


def even_cut(graph: ModelGraph, num_stages: int) -> list[tuple[str, ...]]:
    """The operators in program order, in stages of as many operators as possible alike."""
    ids = [one.id for one in graph.operators]
    size, larger = divmod(len(ids), num_stages)
    ends = [(stage + 1) * size + min(stage + 1, larger) for stage in range(num_stages)]
    return [tuple(ids[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def plan_of(
    graph: ModelGraph,
    stages: Sequence[Sequence[str]],
    *,
    schedule: str = "one_f_one_b",
    micro_batches: int = 4,
    replicas: Sequence[int] | int = 1,
    recompute: Sequence[bool] | bool = False,
    devices: Sequence[int] | None = None,
) -> Plan:
    """A plan of these stages.

    Args:
        devices: for each stage the number of its group of devices; None: each has devices of its own.
    """
    wide = [replicas] * len(stages) if isinstance(replicas, int) else list(replicas)
    again = [recompute] * len(stages) if isinstance(recompute, bool) else list(recompute)
    groups = list(range(len(stages))) if devices is None else list(devices)
    made = [
        Stage(id, tuple(operators), tuple(100 * groups[id] + r for r in range(wide[id])), again[id])
        for id, operators in enumerate(stages)
    ]
    plan = assemble(graph.to_profile_skeleton(), made, schedule=schedule, micro_batches=micro_batches)
    # The skeleton has no sizes. Say of every value that it may have a gradient: where it has none, None comes back.
    return replace(plan, edges=tuple(replace(edge, size_bytes=4, gradient_bytes=4) for edge in plan.edges))
