"""A model on meta has the graph that it would have with its numbers, and takes no memory to be seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline import models


class First(nn.Module):
    """The values of a recurrent layer, without its state."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0][:, -1]


class Own(nn.Module):
    """A constant, tensors made in the forward, a write in place, a part without gradient, a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(10, 8), nn.BatchNorm1d(8)
        self.recurrent, self.first = nn.GRU(8, 8, batch_first=True), First()
        self.mask = torch.ones(8, 8).tril()

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.embedding(torch.arange(tokens.shape[1]))
        with torch.no_grad():
            scale = hidden.abs().amax()
        hidden = self.first(self.recurrent(hidden / scale)) @ self.mask
        return nn.functional.dropout(self.norm(hidden).relu_(), 0.3, self.training) + torch.tensor([2.0])


def _recurrent() -> models.RealModel:
    model = nn.Sequential(nn.LSTM(3, 4, 2, dropout=0.5, batch_first=True), First(), nn.Linear(4, 2), nn.RReLU())
    return models.RealModel(model, (torch.randn(3, 5, 3),), torch.zeros(()), nn.functional.mse_loss)


def _own() -> models.RealModel:
    return models.RealModel(Own(), (torch.randint(10, (4, 5)),), torch.zeros(()), nn.functional.mse_loss)


class Tied(nn.Module):
    """An embedding that is the head as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).relu())


def _tied_layers() -> models.RealModel:
    return models.RealModel(Tied(), (torch.randint(10, (4, 5)),), torch.zeros(()), nn.functional.mse_loss)


CASES: dict[str, Callable[[], models.RealModel]] = {
    "own": _own,
    "recurrent": _recurrent,
    "tied layers": _tied_layers,
    "tied": lambda: models.transformer(depth=1, tied=True),
    "resnet": models.resnet,
    "unet": models.unet,
}
#: That ties are kept, `tied layers` shows as well.
_SLOW = ("tied", "resnet", "unet")


def _without_numbers(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)


def _described(graph: ModelGraph) -> list[Any]:
    return [
        (one.id, one.description, one.inputs, one.parameters, one.buffers, one.is_random, len(one.nodes))
        for one in graph.operators
    ]


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.soak] * (one in _SLOW)) for one in CASES])
def test_a_model_on_meta_has_the_graph_that_it_has_with_its_numbers(name: str) -> None:
    model, inputs, *_ = CASES[name]()
    on_meta = copy.deepcopy(model, {id(one): _without_numbers(one) for one in model.parameters()})
    tensors = [id(one) for one in (*on_meta.parameters(), *on_meta.buffers())]
    graph, wanted = trace(on_meta, inputs), trace(model, inputs)
    assert _described(graph) == _described(wanted)
    assert _described(graph.for_eval) == _described(wanted.for_eval)
    assert bool(graph.ties) == name.startswith("tied")
    assert graph.ties == wanted.ties and graph.batch_norms == wanted.batch_norms
    assert graph.to_profile_skeleton() == wanted.to_profile_skeleton()
    assert tensors == [id(one) for one in (*graph.parameters.values(), *graph.buffers.values())], "left as they were"

    values = graph.bind(*inputs)
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for one in (graph, wanted):  # the same numbers in both programs
        buffers = {key: buffer.clone() for key, buffer in wanted.buffers.items()}
        torch.manual_seed(1)
        found.append((one.whole_program()(values, wanted.parameters, buffers)[one.output], buffers))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(found[0][1][key], found[1][1][key]) for key in wanted.buffers)


def test_a_model_larger_than_any_memory_is_traced() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(1 << 20, 1 << 20) for _ in range(8)])
    graph = trace(Wrapped(model), torch.empty(2, 1).expand(2, 1 << 20))
    assert sum(tensor.nbytes for tensor in graph.parameters.values()) > 1 << 45
    assert len(graph.operators) == 9


class Wrapped(nn.Module):
    """So that it is exported."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_what_cannot_be_seen_without_numbers_is_refused_with_the_way_out() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            return x * 2 if float(x.sum()) > 0 else x

    with pytest.raises(NotTraceable, match=r"parameters on the device 'meta'.*give the model itself"):
        trace(Looks().to("meta"), torch.randn(2, 2))

    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mask = nn.Linear(2, 2), torch.ones(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.mask

    with torch.device("meta"):
        model = Masks()
    with pytest.raises(NotTraceable, match="meta"):
        trace(model, torch.randn(2, 2))
