"""Split backward: I and W together give what a whole backward gives, bit for bit, and W only when asked."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.pipeline.tracing import weight_queue
from ropewalk.pipeline.tracing.split_backward import WeightQueue, deferred_weights
from tests.pipeline.models import MODELS

pytestmark = pytest.mark.usefixtures("one_thread")


def whole(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor | None]:
    """The gradients of floating inputs and parameters by one backward."""
    torch.manual_seed(1)
    leaves = prepared(module, inputs)
    value = module(*inputs)
    value.backward(cotangent(value))
    return [leaf.grad for leaf in leaves]


def split(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[list[Tensor | None], list[Tensor | None], int]:
    """The same after I alone and after W, and how many calls were deferred."""
    torch.manual_seed(1)
    leaves = prepared(module, inputs)
    queue = WeightQueue()
    with deferred_weights(queue):
        value = module(*inputs)
    value.backward(cotangent(value))
    after_input_gradient = [leaf.grad for leaf in leaves]
    num_deferred = len(queue)
    queue.run()
    return after_input_gradient, [leaf.grad for leaf in leaves], num_deferred


def prepared(module: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [*inputs, *module.parameters()]
    for leaf in leaves:
        leaf.grad = None
    return leaves


def cotangent(value: Tensor) -> Tensor:
    return torch.linspace(-1, 1, value.numel(), dtype=value.dtype).reshape(value.shape)


def same(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def image(channels: int, *size: int) -> Tensor:
    return torch.randn(2, channels, *size, requires_grad=True)


CALLS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "linear": lambda: (nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)),
    "linear without bias": lambda: (nn.Linear(5, 7, bias=False), torch.randn(3, 5, requires_grad=True)),
    "linear of a sequence": lambda: (nn.Linear(5, 7), torch.randn(3, 4, 5, requires_grad=True)),
    "linear of one vector": lambda: (nn.Linear(5, 7), torch.randn(5, requires_grad=True)),
    "linear in float64": lambda: (nn.Linear(5, 7).double(), torch.randn(3, 5, dtype=torch.float64)),
    "linear in bfloat16": lambda: (nn.Linear(5, 7).bfloat16(), torch.randn(3, 5, dtype=torch.bfloat16)),
    "linear of data": lambda: (nn.Linear(5, 7), torch.randn(3, 5)),
    "conv1d": lambda: (nn.Conv1d(4, 6, 3, stride=2, padding=1), image(4, 9)),
    "conv2d": lambda: (nn.Conv2d(4, 6, 3), image(4, 7, 8)),
    "conv2d without bias": lambda: (nn.Conv2d(4, 6, (3, 1), bias=False), image(4, 7, 8)),
    "conv2d in groups": lambda: (nn.Conv2d(4, 6, 3, groups=2), image(4, 7, 8)),
    "conv2d dilated": lambda: (nn.Conv2d(4, 6, 3, dilation=(2, 1), padding=(0, 2)), image(4, 7, 8)),
    "conv2d, same size": lambda: (nn.Conv2d(4, 6, 3, padding="same"), image(4, 7, 8)),
    "conv2d, same size, even kernel": lambda: (nn.Conv2d(4, 6, (4, 3), padding="same"), image(4, 7, 8)),
    "conv2d, valid": lambda: (nn.Conv2d(4, 6, 3, padding="valid"), image(4, 7, 8)),
    "conv2d, circular": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), image(4, 7, 8)),
    "conv2d, replicated": lambda: (nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate"), image(4, 7, 8)),
    "conv2d, channels last": lambda: (
        nn.Conv2d(4, 6, 3),
        image(4, 7, 8).detach().contiguous(memory_format=torch.channels_last).requires_grad_(),
    ),
    "conv2d of one image": lambda: (nn.Conv2d(4, 6, 3), torch.randn(4, 7, 8, requires_grad=True)),
    "conv2d of data": lambda: (nn.Conv2d(4, 6, 3), image(4, 7, 8).detach()),
    "conv3d": lambda: (nn.Conv3d(2, 3, 2), image(2, 4, 5, 3)),
    "conv transpose 1d": lambda: (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), image(4, 5)),
    "conv transpose 2d": lambda: (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, dilation=2), image(4, 5, 4)),
    "conv transpose 3d": lambda: (nn.ConvTranspose3d(2, 3, 2, bias=False), image(2, 4, 5, 3)),
    "embedding": lambda: (nn.Embedding(9, 4), torch.tensor([[1, 3, 3], [0, 8, 1]])),
    "embedding with padding": lambda: (nn.Embedding(9, 4, padding_idx=-1), torch.tensor([[1, 8, 3], [0, 8, 1]])),
    "embedding, scaled": lambda: (nn.Embedding(9, 4, scale_grad_by_freq=True), torch.tensor([1, 3, 3])),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_deferred_call_is_bit_equal_to_a_whole_backward(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = CALLS[name]()
    expected_value = module(inputs)
    expected = whole(module, (inputs,))
    queue = WeightQueue()
    with deferred_weights(queue):
        assert torch.equal(module(inputs), expected_value)
    after_input_gradient, gradients, num_deferred = split(module, (inputs,))
    assert num_deferred == 1
    assert same(gradients, expected)
    assert same(after_input_gradient[:1], expected[:1])
    assert after_input_gradient[1:] == [None] * (len(gradients) - 1)  # no weight gradient before W


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_is_bit_equal_to_a_whole_backward(name: str) -> None:
    model, inputs, *_ = MODELS[name]()
    if name == "two_branches":
        inputs = (inputs[0].requires_grad_(), inputs[1])
    expected = whole(model, inputs)
    _, gradients, num_deferred = split(model, inputs)
    assert num_deferred >= 3
    assert same(gradients, expected)


def test_a_weight_that_two_calls_read_gets_the_sum_of_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            hidden = functional.linear(self.embedding(tokens).tanh(), self.head.weight[:6])
            return self.head(hidden) * self.head.weight.sum()

    torch.manual_seed(0)
    model, tokens = Twice(), torch.tensor([[1, 3, 3], [0, 8, 1]])
    expected = whole(model, (tokens,))
    _, gradients, num_deferred = split(model, (tokens,))
    assert num_deferred == 2  # not the one whose weight is computed from a leaf
    for one, other in zip(gradients[1:], expected[1:], strict=True):
        assert one is not None and other is not None
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("group_bytes", [1, 2**20])
def test_sums_over_three_readers_are_in_the_order_of_autograd(
    group_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_queue, "_GROUP_BYTES", group_bytes)
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    model, inputs = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer), torch.randn(8, 16)
    expected = whole(model, (inputs,))
    _, gradients, num_deferred = split(model, (inputs,))
    assert num_deferred == 3
    assert same(gradients, expected)


def test_a_negative_padding_index_counts_from_the_end() -> None:
    weight, tokens = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 4])
    queue = WeightQueue()
    with deferred_weights(queue):
        value = functional.embedding(tokens, weight, padding_idx=-1)
    value.backward(torch.ones(2, 3))
    queue.run()
    assert weight.grad is not None and weight.grad.sum(1).tolist() == [3, 0, 0, 0, 0]


def test_gradients_of_micro_batches_add_up_as_in_whole_backwards() -> None:
    torch.manual_seed(0)
    model, pieces = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(3, 5, 4)
    for piece in pieces:
        model(piece).square().mean().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    prepared(model, ())
    queues = [WeightQueue() for _ in pieces]
    for piece, queue in zip(pieces, queues, strict=True):
        with deferred_weights(queue):
            loss = model(piece).square().mean()
        loss.backward()
    for queue in queues:  # after all I, as at the end of a zero-bubble step
        queue.run()
    assert same([parameter.grad for parameter in model.parameters()], expected)


def test_hooks_of_leaves_run_in_w() -> None:
    linear, queue, seen = nn.Linear(3, 2), WeightQueue(), []
    linear.weight.register_hook(lambda gradient: seen.append("before") or gradient * 2)
    linear.weight.register_post_accumulate_grad_hook(lambda leaf: seen.append("after"))
    inputs = torch.randn(4, 3)
    with deferred_weights(queue):
        value = linear(inputs)
    value.backward(torch.ones(4, 2))
    assert seen == []
    queue.run()
    assert seen == ["before", "after"]
    assert same([linear.weight.grad], [2 * torch.ones(2, 4).mm(inputs)])


def test_gradients_can_be_taken_without_touching_the_leaves() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 2)
    inputs, queue = torch.randn(4, 3), WeightQueue()
    with deferred_weights(queue):
        value = second(first(inputs))
    leaves = [*first.parameters(), *second.parameters()]
    # A first stage: no input needs a gradient, and I must reach the first layer nevertheless.
    assert queue.input_gradients([value], leaves, [torch.ones(4, 2)]) == (None,) * 4
    assert len(queue) == 2
    expected = torch.autograd.grad(second(first(inputs)), leaves, torch.ones(4, 2))
    taken = queue.gradients([*leaves, torch.zeros(1, requires_grad=True)])
    assert same([*taken], [*expected, None])
    assert all(leaf.grad is None for leaf in leaves)
    assert len(queue) == 0
    assert queue.gradients(leaves) == (None,) * 4  # all done


def test_recomputation_fills_the_queue_once() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(5, 4, requires_grad=True)
    expected = whole(model, (inputs,))
    leaves = prepared(model, (inputs,))
    with torch.no_grad():
        model(inputs)
    queue = WeightQueue()
    with deferred_weights(queue):
        value = model(inputs)
    value.backward(cotangent(value))
    assert len(queue) == 2
    queue.run()
    assert same([leaf.grad for leaf in leaves], expected)


def test_autocast_computes_as_it_does_whole() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(20, 4))
    inputs = torch.randn(2, 3, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        expected = whole(model, (inputs,))
        _, gradients, num_deferred = split(model, (inputs,))
    assert num_deferred == 2
    assert same(gradients, expected)


def test_frozen_and_computed_weights_do_w_inside_i() -> None:
    frozen = nn.Linear(3, 3).requires_grad_(False)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    clipped = nn.Embedding(5, 3, max_norm=1.0)
    queue = WeightQueue()
    with deferred_weights(queue):
        value = normed(frozen(clipped(torch.tensor([1, 2]))))
    value.backward(torch.ones(2, 3))
    assert len(queue) == 0
    assert all(parameter.grad is not None for parameter in [*normed.parameters(), *clipped.parameters()])


def test_nothing_is_deferred_without_gradients() -> None:
    queue = WeightQueue()
    with deferred_weights(queue), torch.no_grad():
        assert not nn.Linear(3, 3)(torch.randn(2, 3)).requires_grad
    queue.run()
    assert len(queue) == 0


def test_second_derivatives_are_refused() -> None:
    linear, inputs, queue = nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True), WeightQueue()
    with deferred_weights(queue):
        value = linear(inputs).square().sum()
    with pytest.raises(RuntimeError, match="without create_graph=True"):
        torch.autograd.grad(value, inputs, create_graph=True)


@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 3), lambda: nn.Conv1d(3, 3, 1)])
def test_what_is_kept_for_w_is_freed_if_w_is_never_done(make: Callable[[], nn.Module]) -> None:
    # A step that failed, and each operator of a profile, left all tensors of two or more calls behind.
    queue, x = WeightQueue(), torch.ones(3, 3, requires_grad=True)
    with deferred_weights(queue):
        y = nn.Sequential(make(), nn.Tanh(), make())(x)
    queue.input_gradients([y], [x], [torch.ones_like(y)])
    assert len(queue) == 2
    freed = weakref.ref(queue)
    del queue, y
    gc.collect()
    assert freed() is None
