"""What a process that was never told of the models does: rebuilds graphs from blueprints and runs stages of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.training.blueprint import Blueprint
from ropewalk.transport.serialization import dumps, loads


@dataclass(frozen=True)
class Job:
    """Stages of a model to run one after the other."""

    #: For each stage a blueprint that may be for it alone.
    blueprints: Sequence[Blueprint]
    stages: Sequence[Sequence[str]]
    values: dict[str, Any]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    seed: int
    evaluates: bool = False


@dataclass(frozen=True)
class Done:
    """What came of it."""

    output: Any
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    #: Seconds to rebuild the graph and the programs.
    rebuild_s: float


def done(job: Job, graphs: Sequence[Any] | None = None) -> Done:
    """Run the stages, from blueprints, or from these graphs."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    graphs = graphs or [blueprint.graph() for blueprint in job.blueprints]
    stages = job.stages
    if job.evaluates:
        stages = graphs[0].eval_stages(stages)
        graphs = [graph.for_eval for graph in graphs]
    programs = [graph.stage_program(operators) for graph, operators in zip(graphs, stages, strict=True)]
    rebuild_s = time.perf_counter() - begun
    values = dict(job.values)
    buffers = {name: buffer.clone() for name, buffer in job.buffers.items()}
    parameters = {name: one.detach().clone().requires_grad_(one.requires_grad) for name, one in job.parameters.items()}
    torch.manual_seed(job.seed)
    for program in programs:
        values |= program(values, parameters, buffers)
    output = values[graphs[0].output]
    leaves = [one for one in (output.values() if isinstance(output, dict) else [output]) if isinstance(one, Tensor)]
    trained = {name: one for name, one in parameters.items() if one.requires_grad}
    if not job.evaluates:
        torch.stack([leaf.float().square().sum() for leaf in leaves]).sum().backward()
    return Done(
        {name: one.detach() for name, one in output.items()} if isinstance(output, dict) else output.detach(),
        {name: one.grad for name, one in trained.items()},
        buffers,
        rebuild_s,
    )


def read(jobs: Sequence[tuple[bytes, list[bytes]]]) -> tuple[bytes, list[bytes]]:
    """Do jobs, each a pickle with its buffers; returns the pickle of the results with theirs."""
    payload = dumps([done(loads(*job)) for job in jobs])
    return payload.pickle, [bytes(buffer) for buffer in payload.buffers]
