"""The profiler: measures the time, bytes and memory of each operator of a model, on stock PyTorch.

It follows PipeDream (SOSP'19, section 3.1), whose profiler times the leaf modules of a
patched torch. Here the operators of the traced graph run one by one (`operator_runs`), and
their saved tensors are counted (`operator_memory`), with ties, skips and real dtypes. Times
are lower quartiles (`timing`); predictions are sums of them, without a factor. A model on
the meta device is measured operator by operator, on synthetic tensors (`operators_apart`).

Forward and whole backward are measured in the same pass. I and W are measured in separate
passes with a split backward, since together they may take longer than the whole. With
`concurrency`, other processes compute the same meanwhile (`profiling_load`).
"""

from __future__ import annotations

import copy
import functools
import gc
import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import ProfileInvalid
from ropewalk.pipeline.operator_memory import Bytes, measure_bytes
from ropewalk.pipeline.operator_runs import OperatorRuns, Times
from ropewalk.pipeline.operators_apart import OperatorInputs, measure_apart
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.profiling_load import computing_beside
from ropewalk.pipeline.timing import spread_s, take_times, undisturbed_s
from ropewalk.pipeline.tracing.fake_tensors import is_numberless
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.model_inputs import as_arguments
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.pipeline.tracing.trees import map_tensors, tensors_of
from ropewalk.user_frames import user_frames_only

logger = logging.getLogger(__name__)


@user_frames_only
def profile(
    model: nn.Module | ModelGraph,
    example_inputs: Any,
    *,
    repeats: int = 20,
    device: str | torch.device | None = None,
    autocast: torch.dtype | None = None,
    concurrency: int = 1,
    report: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Measure the cost of each operator of a model in training, for one micro-batch.

    Neither the model nor the state of the random generators changes. The model is measured in train mode: a model that
    is in evaluation mode as a whole is treated as if `train()` had been called (see `trace`). Torch uses its configured
    number of threads; a stage should later run with the same number.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import ropewalk as rw
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        >>> profile = rw.pipeline.profile(model, torch.zeros(16, 64))  # a micro-batch of 16 samples
        >>> [sum(operator.parameters.values()) for operator in profile.operators]  # of the input, and of the layers
        [0, 16640, 0, 2080]

    Args:
        model: the model, or its graph from `trace`. Its parameters may be on the meta device; profiling then takes no
            more memory than the largest operator needs.
        example_inputs: one micro-batch, as the model takes it: a tuple of positional arguments, a dictionary of
            keyword arguments, or one tensor. The first dimension of the first tensor counts the samples.
        repeats: measurements of each operator, up to four times as many while the times vary widely. The profile has
            their lower quartile and their spread; if the spread is large, as on a busy machine, a warning is logged.
        device: the device to measure on; None: the model's. A graph is always measured on the device of its model.
        autocast: the dtype in which forwards will compute where that is safe, as the `autocast` of a trainer.
        concurrency: the number of processes that will train on the cores of this host at the same time. With 2 or more,
            that many less one compute the same operators in the meantime, since cores share caches and memory: a
            profile of a process that is alone predicts steps that are 10 to 20 % too short on two cores. Each of them
            starts in some 3 seconds, with a copy of the model.
        report: called with a line of text about the progress.
        clock: returns the time in seconds. `time.thread_time`, with one thread, excludes other work of a busy machine.

    Returns:
        The profile of the model.

    Raises:
        ProfileInvalid: the model has no operator, an operator cannot run on these inputs, `repeats` or `concurrency` is
            below 1, its processes need more cores than there are, or it is above 1 and the model computes on a CUDA
            device, which no other process uses.
        NotTraceable: the graph of the model cannot be traced.
    """
    if repeats < 1:
        raise ProfileInvalid(f"repeats must be at least 1, not {repeats}")
    if concurrency < 1:
        raise ProfileInvalid(f"concurrency counts this process too, so it must be at least 1, not {concurrency}")
    report = report or (lambda _: None)
    with _undisturbed():
        graph, inputs = _prepared(model, example_inputs, device, report)
        if all(one.is_input for one in graph.operators):
            raise ProfileInvalid(
                f"a profile needs at least one operator, and {type(graph.model).__name__} has none: is it empty?"
            )
        with _beside(concurrency - 1, graph, example_inputs, inputs, autocast, report), _computing_in(autocast, inputs):
            report("counting bytes")
            if is_numberless(graph.model):
                taken, bytes_of = measure_apart(graph, inputs, repeats=repeats, clock=clock, report=report)
            else:
                runs = OperatorRuns(graph, inputs, clock)
                bytes_of = measure_bytes(runs)
                take_times(runs, repeats, report)
                taken = {id: OperatorInputs(times, runs.empty) for id, times in runs.times.items()}
    found = _profile(graph, inputs, taken, bytes_of)
    if concurrency > 1:
        found = replace(found, device=f"{found.device}, {concurrency} processes at the same time")
    if found.is_unsure:
        logger.warning("%s: %s", found.model, found.spread_in_words)
    return found


@contextmanager
def _beside(
    num: int,
    graph: ModelGraph,
    example_inputs: Any,
    inputs: Mapping[str, Any],
    autocast: torch.dtype | None,
    report: Callable[[str], None],
) -> Generator[None]:
    """Let other processes measure the same model until the block ends."""
    if not num:
        yield
        return
    kinds = {tensor.device.type for tensor in tensors_of(list(inputs.values()))} - {"cpu", "meta"}
    if kinds:
        raise ProfileInvalid(
            f"concurrency={num + 1} is for processes that share the cores of a host, and this model computes on "
            f"{', '.join(sorted(kinds))}, where each process has a device of its own; leave it out"
        )
    if (needed := (num + 1) * torch.get_num_threads()) > (cores := usable_cpus()):
        raise ProfileInvalid(
            f"concurrency={num + 1} with {torch.get_num_threads()} threads of torch in each process needs {needed} "
            f"cores, and {cores} can be used here, so that they would wait for each other; call "
            f"torch.set_num_threads() with as many as a stage will have (or set OMP_NUM_THREADS), or give a "
            f"smaller concurrency"
        )
    many = "1 process that computes" if num == 1 else f"{num} processes that compute"
    report(f"starting {many} beside this one")
    with computing_beside(
        num, functools.partial(_measure_for_load, graph.model, example_inputs, autocast, torch.get_num_threads())
    ):
        yield


def _measure_for_load(model: nn.Module, example_inputs: Any, autocast: torch.dtype | None, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    profile(model, example_inputs, repeats=3, autocast=autocast)


def _computing_in(dtype: torch.dtype | None, inputs: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Compute as stages do with `autocast`; each forward casts its weights again, as each micro-batch does."""
    if dtype is None:
        return nullcontext()
    return torch.autocast(tensors_of(list(inputs.values()))[0].device.type, dtype, cache_enabled=False)


def _prepared(
    model: nn.Module | ModelGraph, example_inputs: Any, device: str | torch.device | None, report: Callable[[str], None]
) -> tuple[ModelGraph, Mapping[str, Any]]:
    """The graph of the model, and the values of its inputs, on the device to measure on."""
    if isinstance(model, ModelGraph):
        if device is not None:
            raise ProfileInvalid(
                f"a graph is measured where its model is; leave out device={str(device)!r}, or give the model"
            )
        args, kwargs = as_arguments(example_inputs)
        return model, model.bind(*args, **kwargs)
    if not any(True for _ in model.children()) and isinstance(model, nn.Sequential | nn.Identity):
        raise ProfileInvalid(f"a profile needs at least one operator, and this {type(model).__name__} has none")
    if device is not None:
        model = copy.deepcopy(model).to(device)
        example_inputs = map_tensors(lambda tensor: tensor.to(device), example_inputs)
    report(f"tracing {type(model).__name__}")
    args, kwargs = as_arguments(example_inputs)
    graph = trace(model, example_inputs)
    return graph, graph.bind(*args, **kwargs)


def _profile(
    graph: ModelGraph, inputs: Mapping[str, Any], taken: Mapping[str, OperatorInputs], bytes_of: Mapping[str, Bytes]
) -> Profile:
    skeleton = graph.to_profile_skeleton()
    first = tensors_of(list(inputs.values()))[0]
    nothing = OperatorInputs(Times(), Times())
    return replace(
        skeleton,
        operators=tuple(
            _operator(operator, *taken.get(operator.id, nothing), bytes_of[operator.id])
            for operator in skeleton.operators
        ),
        num_samples=first.shape[0] if first.dim() else 1,
        device=f"{first.device}, {torch.get_num_threads()} threads, torch {torch.__version__}",
    )


def _operator(operator: Operator, times: Times, empty: Times, sizes: Bytes) -> Operator:
    return replace(
        operator,
        forward_s=_beyond(times.forward, empty.forward),
        backward_s=_beyond(times.backward, empty.backward),
        input_gradient_s=_beyond(times.input_gradient, empty.input_gradient),
        weight_gradient_s=_beyond(times.weight_gradient, empty.weight_gradient),
        spread_s=spread_s(times),
        output_bytes=sizes.output_bytes,
        gradient_bytes=sizes.gradient_bytes,
        saved_bytes=sizes.saved_bytes,
        saved=sizes.saved,
        held_bytes=sizes.held_bytes,
    )


def _beyond(samples: list[float], empty: list[float]) -> float:
    """The undisturbed seconds without those of an empty call; 0 if the operator has no such part."""
    return max(0.0, undisturbed_s(samples) - undisturbed_s(empty)) if samples else 0.0


@contextmanager
def _undisturbed() -> Generator[None]:
    """Turn garbage collection off and seed the random generators; both are restored afterwards."""
    collects = gc.isenabled()
    with torch.random.fork_rng(), torch.enable_grad():  # pyright: ignore[reportUnknownMemberType]
        torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()
