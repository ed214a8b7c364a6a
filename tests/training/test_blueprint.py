"""A blueprint has no weights, travels small, and gives in another process the numbers of the model, bit by bit."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ropewalk as rw
from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.graph_records import Operation
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training import stage_fleet
from ropewalk.training.blueprint import Blueprint
from ropewalk.transport.serialization import dumps, loads
from tests.pipeline import models
from tests.training.blueprint_reader import Done, Job, done, read


@dataclass(frozen=True)
class Out:
    """What a model returns."""

    logits: Tensor
    hidden: Tensor


class Masked(nn.Module):
    """Constants that export lifts, a part without gradient, which it keeps as a graph, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.last.bias.requires_grad_(False)
        self.mask = torch.ones(300, 300)[:8, :8].tril().clone()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            scale = x.abs().mean() + torch.tensor([2.0])
        hidden = nn.functional.dropout(self.norm(self.first(x)) / scale, training=self.training)
        return {"hidden": hidden, "logits": self.last(hidden @ self.mask)}


def _recurrent() -> tuple[nn.Module, tuple[Tensor, ...]]:
    class Last(nn.Module):  # of this function, so that its code must travel
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.tensor(3.0)

        def forward(self, pair: Any) -> Tensor:
            return pair[0][:, -1] * self.scale

    recurrent = nn.GRU(4, 6, batch_first=True)
    return nn.Sequential(recurrent, Last(), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2)), (
        torch.randn(3, 5, 4),
    )


class Gated(nn.Module):
    """Control flow that only `torch.fx` can leave in peace, inside a leaf."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.detach().sum()) > 0 else x


class Branching(nn.Module):
    """Seen by `torch.fx`; a weight with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.gate = nn.Linear(8, 8), nn.BatchNorm1d(8), Gated()
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gate(self.norm(self.first(x)) + x))


@functools.cache
def _traced(name: str) -> tuple[ModelGraph, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    if name == "masked":
        model, inputs = Masked(), (torch.randn(4, 8),)
    elif name == "recurrent":
        model, inputs = _recurrent()
    elif name == "branching":
        model, inputs = Branching(), (torch.randn(4, 8),)
    else:
        real = models.MODELS[name](**({"tied": True, "depth": 1} if name == "transformer" else {}))
        model, inputs = real.model, real.inputs
    leaves = [Gated] if name == "branching" else []
    return trace(model, inputs, leaf_modules=leaves), inputs


#: Every way to see a graph, with batch statistics, dropout and ties; the others are for `make soak`.
QUICK = ("transformer", "unet", "masked", "recurrent", "branching")
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.soak) for name in models.MODELS if name not in QUICK)]


def _job(graph: ModelGraph, inputs: tuple[Tensor, ...], num_stages: int, *, evaluates: bool) -> Job:
    ids = [one.id for one in graph.operators]
    bounds = [len(ids) * index // num_stages for index in range(num_stages + 1)]
    stages = [ids[a:b] for a, b in itertools.pairwise(bounds)]
    whole = Blueprint.of(graph)
    return Job(
        [whole] * num_stages,
        stages,
        graph.bind(*inputs),
        {name: one.detach().requires_grad_(one.requires_grad) for name, one in graph.parameters.items()},
        {name: one.clone() for name, one in graph.buffers.items()},
        7,
        evaluates,
    )


def _elsewhere(jobs: Sequence[Job], session: rw.Session) -> list[Done]:
    payloads = [dumps(job) for job in jobs]
    sent = [(one.pickle, [bytes(buffer) for buffer in one.buffers]) for one in payloads]
    with rw.Pool(1, session=session, preload=stage_fleet.PRELOADED) as pool:
        pickled, buffers = pool.apply(read, (sent,))
    return loads(pickled, buffers)


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, trainings: rw.Session) -> Mapping[tuple[str, bool], tuple[Done, Done]]:
    """For each model that is tested, in training and in evaluation: from its graph here, from its blueprint there."""
    items: list[Any] = request.session.items
    chosen = {item.callspec.params["name"] for item in items if "results" in item.fixturenames}
    before = torch.get_num_threads()
    jobs: dict[tuple[str, bool], Job] = {}
    here: list[Done] = []
    with torch.random.fork_rng():
        for name in sorted(chosen):
            graph, inputs = _traced(name)
            for evaluates in (False, True):
                job = jobs[name, evaluates] = _job(graph, inputs, 2, evaluates=evaluates)
                here.append(done(job, [graph] * 2))
    torch.set_num_threads(before)
    there = _elsewhere(list(jobs.values()), trainings)
    return {key: (one, other) for key, one, other in zip(jobs, here, there, strict=True)}


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_another_process_computes_from_a_blueprint_what_the_graph_gives_to_the_bit(
    name: str, evaluates: bool, results: Mapping[tuple[str, bool], tuple[Done, Done]]
) -> None:
    here, there = results[name, evaluates]
    if isinstance(here.output, Tensor):
        assert torch.equal(here.output, there.output)
    else:
        assert here.output.keys() == there.output.keys()
        assert all(torch.equal(one, there.output[key]) for key, one in here.output.items())
    for one, other in ((here.gradients, there.gradients), (here.buffers, there.buffers)):
        assert one.keys() == other.keys()
        assert all(_same(a, b) for a, b in zip(one.values(), other.values(), strict=True))


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_a_blueprint_has_no_weights_and_says_what_they_are_like(name: str) -> None:
    graph, _ = _traced(name)
    blueprint = Blueprint.of(graph)
    assert dumps(blueprint).size_bytes < 60_000
    rebuilt = blueprint.graph()
    assert type(rebuilt.model).__name__ == type(graph.model).__name__
    assert rebuilt.model.training
    for own, theirs in ((graph.parameters, rebuilt.parameters), (graph.buffers, rebuilt.buffers)):
        assert list(own) == list(theirs)
        for key, tensor in own.items():
            other = theirs[key]
            assert other.is_meta
            assert (other.shape, other.dtype, other.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
            assert other.requires_grad == tensor.requires_grad
    assert rebuilt.to_profile_skeleton() == graph.to_profile_skeleton()
    assert rebuilt.ties == graph.ties and rebuilt.batch_norms == graph.batch_norms
    assert [one.is_random for one in rebuilt.operators] == [one.is_random for one in graph.operators]


def test_weights_do_not_travel_in_modules_that_were_run_or_keep_lists_of_them() -> None:
    model = nn.Sequential(nn.GRU(64, 64), First(), nn.Linear(64, 64))
    graph = trace(model, torch.randn(3, 64), fixed_batch=True)
    graph(torch.randn(3, 64))
    assert dumps(Blueprint.of(graph)).size_bytes < 20_000


class First(nn.Module):
    """The values of a recurrent layer, without its state."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0]


def test_evaluation_can_be_left_out() -> None:
    graph, _ = _traced("mlp")
    blueprint = Blueprint.of(graph, evaluates=False)
    with pytest.raises(NotTraceable, match="evaluates=True"):
        _ = blueprint.graph().for_eval


def test_a_module_that_cannot_be_copied_is_named() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    graph = trace(nn.Sequential(nn.Linear(2, 2), Locked()), torch.randn(2, 2))
    with pytest.raises(NotTraceable, match=r"module '1'.*cannot pickle"):
        Blueprint.of(graph)


def test_an_operation_that_a_process_does_not_know_is_named() -> None:
    graph, _ = _traced("masked")
    blueprint = Blueprint.of(graph, evaluates=False)
    odd = next(one for one in blueprint._records if isinstance(one.target, Operation))
    there = dataclasses.replace(
        blueprint, _records=tuple(r._replace(target=Operation("my.own")) if r is odd else r for r in blueprint._records)
    )
    with pytest.raises(NotTraceable, match=r"torch\.ops\.my\.own, which this process does not know"):
        there.graph()
