"""Every live version of weights is a set of leaves of its own (docs/theory.md, "Weight versions under autograd")."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.stages.weight_versions import WeightVersions
from ropewalk.pipeline.tracing.tracer import trace


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.5)


def weights(*tensors: Tensor) -> dict[str, Tensor]:
    return {name: nn.Parameter(tensor) for name, tensor in zip("wbcd", tensors, strict=False)}


class Call(nn.Module):
    """A layer and how it is called on one tensor."""

    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer = layer
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)


def plainly(layer: Any, x: Tensor) -> Any:
    return layer(x)


def first(layer: Any, x: Tensor) -> Any:
    return layer(x)[0]


Layer = tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Any], tuple[int, ...]]

#: How each layer of torch.nn that has parameters is made and called, on an input of which shape.
LAYERS: dict[str, Layer] = {
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 6, [2, 4]),
        lambda layer, x: layer(x, torch.arange(len(x)) % 6).output,
        (6, 16),
    ),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), plainly, (5, 3)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), plainly, (4, 3, 2, 2)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(3), plainly, (4, 3, 2, 2, 2)),
    "Bilinear": (lambda: nn.Bilinear(3, 3, 2), lambda layer, x: layer(x, x.cos()), (4, 3)),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 2), plainly, (3, 2, 5)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2), plainly, (3, 2, 4, 4)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), plainly, (3, 2, 3, 3, 3)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 3, 2), plainly, (3, 2, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 2), plainly, (3, 2, 3, 3)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 2), plainly, (3, 2, 2, 2, 2)),
    "Embedding": (lambda: nn.Embedding(5, 3), lambda layer, x: layer(x.long().abs() % 5), (3, 4)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(5, 3), lambda layer, x: layer(x.long().abs() % 5), (3, 4)),
    "GRU": (lambda: nn.GRU(3, 4, num_layers=2), first, (5, 2, 3)),
    "GRUCell": (lambda: nn.GRUCell(3, 4), plainly, (5, 3)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), plainly, (3, 4, 2)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3, affine=True), plainly, (4, 3, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), plainly, (4, 3, 2, 2)),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(3, affine=True), plainly, (4, 3, 2, 2, 2)),
    "LSTM": (lambda: nn.LSTM(3, 4, num_layers=2), first, (5, 2, 3)),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), first, (5, 3)),
    "LayerNorm": (lambda: nn.LayerNorm(3), plainly, (4, 3)),
    "Linear": (lambda: nn.Linear(3, 4), plainly, (5, 3)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), lambda layer, x: layer(x, x, x)[0], (3, 2, 4)),
    "PReLU": (lambda: nn.PReLU(3), plainly, (4, 3)),
    "RMSNorm": (lambda: nn.RMSNorm(3), plainly, (4, 3)),
    "RNN": (lambda: nn.RNN(3, 4), first, (5, 2, 3)),
    "RNNCell": (lambda: nn.RNNCell(3, 4), plainly, (5, 3)),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0),
        lambda layer, x: layer(x, x.cos()),
        (3, 2, 4),
    ),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), plainly, (3, 2, 4)),
    "tied Linear": (
        lambda: _tied(nn.Linear(3, 3), nn.Linear(3, 3)),
        plainly,
        (5, 3),
    ),
    "tied Conv2d": (lambda: _tied(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)), plainly, (2, 2, 4, 4)),
}  # fmt: skip
#: Those that make no parameters of their own, or whose kind stands for them.
STOOD_FOR = {
    "CrossMapLRN2d": "has none",
    "LazyBatchNorm1d": "a BatchNorm1d once it was called",
    "LazyBatchNorm2d": "a BatchNorm2d once it was called",
    "LazyBatchNorm3d": "a BatchNorm3d once it was called",
    "LazyConv1d": "a Conv1d once it was called",
    "LazyConv2d": "a Conv2d once it was called",
    "LazyConv3d": "a Conv3d once it was called",
    "LazyConvTranspose1d": "a ConvTranspose1d once it was called",
    "LazyConvTranspose2d": "a ConvTranspose2d once it was called",
    "LazyConvTranspose3d": "a ConvTranspose3d once it was called",
    "LazyInstanceNorm1d": "an InstanceNorm1d once it was called",
    "LazyInstanceNorm2d": "an InstanceNorm2d once it was called",
    "LazyInstanceNorm3d": "an InstanceNorm3d once it was called",
    "LazyLinear": "a Linear once it was called",
    "ParameterDict": "no layer",
    "ParameterList": "no layer",
    "RNNBase": "the base of RNN, LSTM, GRU",
    "RNNCellBase": "the base of RNNCell, LSTMCell, GRUCell",
    "Transformer": "its layers, which are listed",
    "SyncBatchNorm": "needs processes with GPUs",
}


def _tied(one: Any, other: Any) -> nn.Module:
    other.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), other)


def test_all_layers_of_torch_with_parameters_are_listed() -> None:
    found: set[str] = set()
    for name, kind in vars(nn).items():
        if isinstance(kind, type) and issubclass(kind, nn.Module) and kind is not nn.Module:
            makers = [
                vars(base)["__init__"].__code__
                for base in kind.__mro__
                if "__init__" in vars(base) and base is not object
            ]
            if any({"Parameter", "register_parameter"} & set(code.co_names) for code in makers[:-1]):  # but for Module
                found.add(name)
    assert found - set(LAYERS) - set(STOOD_FOR) == set()


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_the_version_that_ran_forward(name: str) -> None:
    """Two forwards, a step between them and their backwards, in another order than they ran."""
    make, call, shape = LAYERS[name]
    model = nn.Sequential(Call(make(), call))
    xs = [torch.randn(*shape) for _ in range(3)]
    expected, after = by_plain_torch(model, xs)
    program = (graph := trace(model, (xs[0],))).whole_program()
    versions = WeightVersions(graph.parameters, sgd, slots=4)
    buffers = {buffer: tensor.clone() for buffer, tensor in graph.buffers.items()}
    running: list[tuple[int, Tensor, Tensor]] = []
    for number, x in enumerate(xs):
        leaf = x.clone().requires_grad_()
        version = versions.hold(number)
        output = program({"input.input": leaf}, versions.leaves(version), buffers)[graph.output]
        running.append((version, leaf, output))
        versions.step({name: torch.ones_like(versions.parameters[name]) for name in versions.trainable})
    for number in (1, 0, 2):
        version, leaf, output = running[number]
        output.backward(torch.ones_like(output))
        found = {n: leaf.grad for n, leaf in versions.leaves(version).items()} | {"input": leaf.grad}
        versions.release(version)
        assert [n for n in expected[number] if not same(found[n], expected[number][n])] == []
    assert all(torch.equal(versions.parameters[n], weight) for n, weight in after.items())


def same(found: Tensor | None, expected: Tensor | None) -> bool:
    return found is expected if found is None or expected is None else torch.equal(found, expected)


def by_plain_torch(model: nn.Module, xs: list[Tensor]) -> tuple[list[dict[str, Tensor | None]], dict[str, Tensor]]:
    """The gradients of each forward right after it, with weights that go down by 0.5 after each."""
    model = copy.deepcopy(model)
    found: list[dict[str, Tensor | None]] = []
    for x in xs:
        leaf = x.clone().requires_grad_()
        model.zero_grad()
        output = model(leaf)
        output.backward(torch.ones_like(output))
        grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        found.append(grads | {"input": leaf.grad})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5
    return found, {name: p.detach() for name, p in model.named_parameters()}


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, weight_decay=0.01),
    "sgd foreach": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, fused=True),
    "adam": lambda ps: torch.optim.Adam(ps, 0.1, amsgrad=True),
    "adam foreach": lambda ps: torch.optim.Adam(ps, 0.1, foreach=True),
    "adam fused": lambda ps: torch.optim.Adam(ps, 0.1, fused=True),
    "adamw in two groups": lambda ps: torch.optim.AdamW([{"params": ps[:1]}, {"params": ps[1:], "lr": 0.01}], 0.1),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, 0.1),
    "adagrad fused": lambda ps: torch.optim.Adagrad(ps, 0.1, fused=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, 0.1, momentum=0.5, centered=True),
    "adamax": lambda ps: torch.optim.Adamax(ps, 0.1),
    "nadam": lambda ps: torch.optim.NAdam(ps, 0.1),
    "radam": lambda ps: torch.optim.RAdam(ps, 0.1),
    "adadelta": lambda ps: torch.optim.Adadelta(ps, 0.1),
    "adafactor": lambda ps: torch.optim.Adafactor(ps, 0.1),
    "asgd": lambda ps: torch.optim.ASGD(ps, 0.1),
    "rprop": lambda ps: torch.optim.Rprop(ps, 0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_on_when_they_are_rebound(name: str) -> None:
    make = OPTIMIZERS[name]
    start = weights(torch.randn(3, 2), torch.randn(3))
    plain = [nn.Parameter(tensor.detach().clone()) for tensor in start.values()]
    optimizer = make(plain)
    versions = WeightVersions(start, make, slots=3)
    held: list[tuple[int, list[Tensor]]] = []
    for number in range(6):
        gradients = {key: torch.randn_like(tensor) for key, tensor in start.items()}
        if number % 3:  # now and then nobody holds the newest, and the step is in place
            version = versions.hold(None)
            held.append((version, [leaf.detach().clone() for leaf in versions.leaves(version).values()]))
        if number >= 3 and held:
            versions.release(held.pop(0)[0])
        for parameter, gradient in zip(plain, gradients.values(), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        versions.step(gradients)
        assert all(map(torch.equal, versions.parameters.values(), plain))
        for version, before in held:
            assert all(map(torch.equal, versions.leaves(version).values(), before)), "a held version never changes"
    assert 0 < versions.num_copies < 6
    assert versions.optimizer is not None
    assert set(versions.optimizer.state) == set(versions.parameters.values())


def test_a_step_is_in_place_when_nobody_holds_the_newest_version() -> None:
    versions = WeightVersions(weights(torch.zeros(2)), sgd, slots=3)
    storage = versions.parameters["w"].data_ptr()
    for _ in range(3):
        versions.release(versions.hold(None))
        versions.step({"w": torch.ones(2)})
    assert versions.parameters["w"].data_ptr() == storage
    assert (versions.newest, versions.num_copies, versions.versions) == (3, 0, (3,))


def test_versions_within_the_lag_stay_without_being_held() -> None:
    versions = WeightVersions(weights(torch.zeros(1)), sgd, slots=2, lag=1)
    for number in range(4):
        assert versions.versions == tuple(range(max(0, number - 1), number + 1))
        versions.step({"w": torch.ones(1)})
    assert versions.leaves(versions.hold(3))["w"].item() == -1.5


def test_a_version_that_is_gone_is_an_error_with_those_that_live() -> None:
    versions = WeightVersions(weights(torch.zeros(1)), sgd)
    versions.step({"w": torch.ones(1)})
    with pytest.raises(ScheduleInvalid, match=r"version 0 .* only \[1\] live"):
        versions.hold(0)


def test_more_versions_than_promised_is_an_error() -> None:
    versions = WeightVersions(weights(torch.zeros(1)), sgd, slots=2)
    for _ in range(1):
        versions.hold(None)
        versions.step({})
    versions.hold(None)
    with pytest.raises(ScheduleInvalid, match="all 2 sets of weights are in use"):
        versions.step({})


def test_what_is_not_trained_is_neither_copied_nor_stepped() -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    versions = WeightVersions({"frozen": frozen, "w": nn.Parameter(torch.zeros(2))}, sgd, slots=2)
    before = versions.leaves(versions.hold(None))["frozen"]
    versions.step({"w": torch.ones(2)})
    assert versions.parameters["frozen"] is before
    assert versions.trainable == ("w",)


def test_weights_are_copies_of_the_users() -> None:
    mine = nn.Parameter(torch.zeros(2))
    versions = WeightVersions({"w": mine}, sgd)
    versions.step({"w": torch.ones(2)})
    assert torch.equal(mine, torch.zeros(2))


def test_a_skipped_step_is_the_same_weights_under_another_number() -> None:
    versions = WeightVersions(weights(torch.ones(2)), sgd, slots=2)
    held = versions.hold(0)
    versions.skip()
    assert versions.newest == 1 and versions.num_copies == 0
    assert versions.leaves(0)["w"] is versions.leaves(1)["w"]
    versions.step({"w": torch.ones(2)})
    assert versions.leaves(held)["w"].tolist() == [1.0, 1.0], "who holds version 0 sees its numbers"
    assert versions.parameters["w"].tolist() == [0.5, 0.5]
    versions.release(held)
    versions.skip()
    versions.step({"w": torch.ones(2)})
    assert versions.versions == (4,) and versions.num_copies == 1
    assert versions.parameters["w"].tolist() == [0.0, 0.0]
