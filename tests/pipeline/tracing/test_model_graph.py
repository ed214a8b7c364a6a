"""A graph, whole or cut anywhere, gives what the model itself gives, to the bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ropewalk.pipeline.tracing import ModelGraph, trace
from tests.pipeline.models import MODELS
from tests.pipeline.tracing.cutting import assert_same, random_stages, run_cut, run_itself
from tests.pipeline.tracing.odd_models import ODD_MODELS, ThreeReaders

Traced = tuple[nn.Module, ModelGraph, Any]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=[*MODELS, *ODD_MODELS])
def traced(request: pytest.FixtureRequest) -> Traced:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        if request.param in MODELS:
            real = MODELS[request.param]()
            return (
                real.model,
                traced_unchanged(real.model, real.inputs),
                lambda batch: (resized(real.inputs, batch), {}),
            )
        odd = ODD_MODELS[request.param]()
        args, kwargs = odd.inputs(4)
        return odd.model, traced_unchanged(odd.model, args or kwargs), odd.inputs


def traced_unchanged(model: nn.Module, example: Any) -> ModelGraph:
    """The graph; that tracing leaves the model as it was is seen on the way."""
    before, state, modes = (
        copy.deepcopy(model.state_dict()),
        torch.get_rng_state(),
        [m.training for m in model.modules()],
    )
    graph = trace(model, example)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    return graph


def resized(inputs: tuple[torch.Tensor, ...], batch: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.cat([one] * batch)[:batch] for one in inputs)


@pytest.mark.parametrize("batch", [4, 7])
def test_the_whole_graph_equals_the_model(traced: Traced, batch: int) -> None:
    model, graph, inputs = traced
    args, kwargs = inputs(batch)
    everything = [[one.id for one in graph.operators]]
    assert_same(run_itself(model, args, kwargs, 5), run_cut(graph, everything, args, kwargs, 5))


@pytest.mark.parametrize("seed", range(2))
def test_stages_of_any_cut_equal_the_model(traced: Traced, seed: int) -> None:
    model, graph, inputs = traced
    args, kwargs = inputs(3 + seed)
    stages = random_stages(graph, 2 + seed, seed)
    assert_same(run_itself(model, args, kwargs, seed), run_cut(graph, stages, args, kwargs, seed))


def test_a_stage_of_each_operator_alone_equals_the_model(traced: Traced) -> None:
    model, graph, inputs = traced
    args, kwargs = inputs(5)
    stages = [[one.id] for one in graph.operators]
    assert_same(run_itself(model, args, kwargs, 6), run_cut(graph, stages, args, kwargs, 6))


def test_operators_stand_in_topological_order_and_know_what_they_read(traced: Traced) -> None:
    _, graph, _ = traced
    place = graph.position
    assert all(place[source] < place[target] for source, target in graph.edges)
    assert len({one.id for one in graph.operators}) == len(graph.operators)
    profile = graph.to_profile_skeleton()
    assert profile.order == tuple(one.id for one in graph.operators)
    assert profile.parameter_bytes == sum(p.numel() * p.element_size() for p in graph.model.parameters())


def test_gradients_of_a_value_with_three_readers_are_added_in_the_order_of_the_model() -> None:
    torch.manual_seed(1)
    model, x = ThreeReaders(), torch.randn(50, 6)
    graph = trace(model, x)
    everything = [[one.id for one in graph.operators]]
    assert_same(run_itself(model, (x,), {}, 5), run_cut(graph, everything, (x,), {}, 5))
