"""Prepares a training: the model's graph, the source of its initial tensors, and a plan."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk import settings
from ropewalk.engines.resources import Resources, usable_memory
from ropewalk.errors import NoPlanFits
from ropewalk.pipeline.planning import plan as make_plan
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.profiler import profile as make_profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.tensor_source import GivenTensors, TensorSource
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.pipeline.tracing.trees import map_tensors, tensors_of
from ropewalk.processes.fleet import default_resources
from ropewalk.training.building import build
from ropewalk.training.sources import Initialised, SafetensorsFiles
from ropewalk.training.stage_device import is_here, share_of_memory

Model = nn.Module | ModelGraph | Callable[[], nn.Module]
"""A module in train mode, its graph, or a function without arguments that builds the module."""


def see(
    model: Model, x: Any, *, seed: int, device: str, weights: str | Path | None
) -> tuple[ModelGraph, TensorSource | None]:
    """Return the model's graph, and the source of its initial tensors; None: the model itself.

    Args:
        model: the model to train.
        x: inputs to trace it with.
        seed: determines the random numbers drawn by a function that builds the model.
        device: the device on which this process trains the model; "": other processes do, and the model is not moved.
        weights: files with its initial parameters and buffers, if there are any.

    Raises:
        ValueError: the model cannot be trained.
    """
    source: TensorSource | None = None
    if isinstance(model, ModelGraph):
        graph = model
    elif isinstance(model, nn.Module):
        if device:
            model = copy.deepcopy(model).to(device)
        graph = trace(model, beside(model, x))
    else:
        built = build(model, seed)
        if device:
            built.returned.to(device)
        graph = trace(built.returned, beside(built.model, x))
        source = Initialised(model, seed, built.numbers)
    if weights is not None:
        source = SafetensorsFiles(weights, otherwise=GivenTensors(graph.buffers))
    if not graph.model.training:
        raise ValueError(
            f"{type(graph.model).__name__} is in evaluation mode as a whole, and a trainer trains; call "
            f"model.train() first, and then eval() on those of its modules that should stay in evaluation"
        )
    if not any(parameter.requires_grad for parameter in graph.parameters.values()):
        raise ValueError(
            f"{type(graph.model).__name__} has no parameter that can be trained: {len(graph.parameters)} "
            f"parameters, and none of them requires a gradient; call requires_grad_() on those that should learn"
        )
    return graph, source


def plan_for(
    num_devices: int,
    model: Model,
    graph: ModelGraph,
    x: Any,
    *,
    schedule: str | Schedule | None,
    micro_batches: int | None,
    device: str,
    autocast: torch.dtype | None,
    resources: Resources | None,
) -> Plan:
    """Profile a model with the first micro-batch of `x`, and plan it for a number of processes of this kind.

    Args:
        num_devices: the number of processes.
        model: the model, from which `graph` was traced.
        graph: the graph of the model.
        x: inputs of a mini-batch.
        schedule: a schedule, whose stages then use all devices; None: the planner chooses stages and replicas.
        micro_batches: the number per step; None: four for each device, or fewer, so that each has the two samples that
            a batch normalisation needs.
        device: the kind of device that the stages compute on.
        autocast: the dtype in which their forwards compute where that is safe.
        resources: the resources of each process; without a memory size, each gets a share of this machine's.

    Raises:
        NoPlanFits: no plan fits into the memory given in `resources`.
    """
    num = micro_batches or _usual_number(num_devices, graph, x)
    with _as_many_threads(resources):
        example = _micro_batch(x, num)
        # For one process there is nothing to choose: the times are for the prediction of the report alone.
        measure = functools.partial(make_profile, repeats=1) if num_devices == 1 else make_profile
        if isinstance(model, nn.Module) and is_here(device):
            profile = measure(model, example, device=device, autocast=autocast)
        else:
            profile = measure(graph, beside(graph.model, example), autocast=autocast)
    memory = None if resources is None else resources.memory_bytes
    planned = functools.partial(make_plan, profile, devices=num_devices, schedule=schedule, micro_batches=num)
    if schedule is not None:  # a named schedule implies a pipeline
        return planned(num_stages=make_schedule(schedule).stages_per_worker * num_devices)
    try:
        share = share_of_memory(device, num_devices) or usable_memory() // num_devices
        return planned(memory=memory or share)
    except NoPlanFits:
        if memory is not None:
            raise
    # The processes' hosts may have more memory than this one; the largest number of stages needs the least.
    return planned(num_stages=num_devices)


def beside(model: nn.Module, batch: Any) -> Any:
    """Return inputs or labels on the device of a model."""
    device = next((one.device for one in model.parameters() if not one.is_meta), None)
    return batch if device is None else map_tensors(lambda tensor: tensor.to(device), batch)


@contextmanager
def _as_many_threads(resources: Resources | None) -> Generator[None]:
    """Make torch compute with as many threads as a stage process will."""
    before = torch.get_num_threads()
    torch.set_num_threads(
        max(1, int(default_resources(settings.current()).cpus if resources is None else resources.cpus))
    )
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _usual_number(num_devices: int, graph: ModelGraph, x: Any) -> int:
    """Return how many micro-batches a mini-batch is cut into by default."""
    lengths = [tensor.shape[0] for tensor in tensors_of(x) if tensor.dim()]
    if not lengths or not any(graph.batch_norms.values()):
        return 4 * num_devices
    return max(1, min(4 * num_devices, lengths[0] // 2))


def _micro_batch(x: Any, num: int) -> Any:
    """Return the inputs of the first of `num` micro-batches."""
    lengths = [tensor.shape[0] for tensor in tensors_of(x) if tensor.dim()]
    size = max(1, lengths[0] // num) if lengths else 1

    def cut(tensor: Tensor) -> Tensor:
        return tensor[:size] if tensor.dim() and tensor.shape[0] == lengths[0] else tensor

    return map_tensors(cut, x)
