"""Real models: their profiles foretell what stages keep, and cuts at random places change nothing.

How well the profiles foretell times is measured by `benchmarks/profiler.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.profiler import profile
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.split_backward import WeightQueue, deferred_weights
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.pipeline.tracing.trees import tensors_of
from tests.pipeline.models import MODELS, RealModel
from tests.pipeline.stages_alone import alone, random_cut


class NumbersComputed(TorchDispatchMode):
    """A clock on which a second passes for each number that torch computes: what small models take is mostly noise."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.now_s += sum(tensor.numel() for tensor in tensors_of(found))
        return found


Measured = tuple[RealModel, ModelGraph, Profile]


@pytest.fixture(scope="module", params=list(MODELS))
def measured(request: pytest.FixtureRequest) -> Iterator[Measured]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = MODELS[request.param]()
    graph = trace(model.model, model.inputs)
    with NumbersComputed() as clock:
        found = profile(graph, model.inputs, repeats=1, clock=lambda: clock.now_s)
    yield model, graph, found
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("seed", range(3))
def test_a_stage_alone_keeps_the_bytes_that_its_profile_foretells(measured: Measured, seed: int) -> None:
    model, graph, found = measured
    costs = OperatorCosts(found)
    for stage in alone(graph, random_cut(found, 2 + seed, seed), model.inputs):
        predicted, kept = costs.stage(stage.operators).saved_bytes, stage.saved_bytes()
        assert abs(predicted - kept) <= 0.1 * kept, f"{stage.operators}: {predicted} foretold, {kept} kept"


def test_every_operator_and_parameter_has_its_costs(measured: Measured) -> None:
    model, graph, found = measured
    assert [one.id for one in found.operators] == [one.id for one in graph.operators]
    assert found.parameter_bytes == sum(parameter.nbytes for parameter in model.model.parameters())
    assert all(one.forward_s > 0 for one in found.operators if one.parameters)
    assert any(one.weight_gradient_s for one in found.operators)
    assert found.num_samples == len(model.inputs[0])


def test_the_traced_model_splits_its_backward_bit_for_bit(measured: Measured) -> None:
    model, graph, _ = measured
    parameters = list(graph.parameters.values())

    def gradients(split: bool) -> list[torch.Tensor | None]:
        torch.manual_seed(3)
        queue = WeightQueue()
        values, buffers = graph.bind(*model.inputs), {name: one.clone() for name, one in graph.buffers.items()}
        if not split:
            value = graph.whole_program()(values, graph.parameters, buffers)[graph.output]
            return [*torch.autograd.grad(model.loss(value, model.targets), parameters)]
        with deferred_weights(queue):
            value = graph.whole_program()(values, graph.parameters, buffers)[graph.output]
        at_once = queue.input_gradients([model.loss(value, model.targets)], parameters, [None])
        later = queue.gradients(parameters)
        assert all(now is None or then is None for now, then in zip(at_once, later, strict=True))
        return [now if then is None else then for now, then in zip(at_once, later, strict=True)]

    for whole, parts in zip(gradients(split=False), gradients(split=True), strict=True):
        assert whole is not None and parts is not None and torch.equal(whole, parts)


def test_the_parts_of_a_cut_are_the_model(measured: Measured) -> None:
    model, graph, _ = measured
    torch.manual_seed(4)
    buffers = {name: one.clone() for name, one in graph.buffers.items()}
    expected = graph.whole_program()(graph.bind(*model.inputs), graph.parameters, buffers)[graph.output]
    in_program_order = [list(graph.operators[:5]), list(graph.operators[5:])]
    torch.manual_seed(4)
    values, buffers = dict(graph.bind(*model.inputs)), {name: one.clone() for name, one in graph.buffers.items()}
    for operators in in_program_order:
        program = graph.stage_program([one.id for one in operators])
        values.update(program({id: values[id] for id in program.inputs}, graph.parameters, buffers))
    (value,), (whole,) = tensors_of(values[graph.output]), tensors_of(expected)
    assert torch.equal(value, whole)
