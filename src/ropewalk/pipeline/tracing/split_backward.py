"""A backward in two halves: the gradients of the inputs at once, those of the weights later.

Zero-bubble schedules need this (Qi et al., "Zero Bubble Pipeline Parallelism", 2024, https://arxiv.org/abs/2401.10241,
section 2): the previous stage waits for the input's gradient (I), only the optimizer for the weight's (W).

    F    with deferred_weights(queue):      x ──▶ linear ──▶ norm ──▶ conv ──▶ y
    I    queue.input_gradients(...)        dx ◀────┬─────── norm ◀──────┬──── dy
    W    queue.run()                               └▶ (x, dy) ─▶ dw     └▶ (x, dy) ─▶ dw

Linear layers, convolutions (transposed ones too) and embeddings are split where their weight is a leaf. All other
calls, and those whose weight is computed from others, do W inside I. Calls are recognised by torch's function mode
wherever they are: in modules, in functions and in graphs of ATen operators; but not inside calls that torch runs as one
function (`nn.MultiheadAttention` that was not traced, recurrent layers).

I and W together are bit-equal to a whole backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ropewalk.pipeline.tracing.weight_queue import DeferredCall, Parameters, WeightQueue

__all__ = ["WeightQueue", "deferred_weights"]


class deferred_weights(TorchFunctionMode):
    """Defer the weight gradients of calls within the block to a queue.

    Example::

        queue = WeightQueue()
        with deferred_weights(queue):
            y = stage(x)
        (dx,) = queue.input_gradients([y], [x], [dy])     # I; `y.backward(dy)` is one too
        queue.run()                                       # W
    """

    def __init__(self, queue: WeightQueue) -> None:
        super().__init__()
        self._queue = queue

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        split = _SPLIT.get(func)
        if split is not None and torch.is_grad_enabled():
            deferred = split(self._queue, *args, **(kwargs or {}))
            if deferred is not None:
                return deferred
        return func(*args, **(kwargs or {}))


# --- the functions that are split; None means that a call cannot be split ---------------------------------------------


def _linear(queue: WeightQueue, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if not _are_leaves(weight, bias):
        return None
    return _defer(_Linear, queue, _as_autocast(input), (weight, bias))


def _embedding(
    queue: WeightQueue,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    if not _are_leaves(weight, None) or max_norm is not None:  # with max_norm the forward writes into the weight
        return None
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return _defer(_Embedding, queue, input, (weight, None), padding, scale_grad_by_freq, sparse)


def _aten_embedding(
    queue: WeightQueue,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    padding = None if padding_idx == -1 else padding_idx
    return _embedding(queue, indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def _convolution(
    queue: WeightQueue,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor | None:
    if not _are_leaves(weight, bias):
        return None
    shape = list(stride), list(padding), list(dilation), transposed, list(output_padding), groups
    dims = weight.dim() - 2
    if input.dim() == dims + 1:  # one sample without its batch dimension
        return _defer(_Convolution, queue, _as_autocast(input).unsqueeze(0), (weight, bias), shape).squeeze(0)
    return _defer(_Convolution, queue, _as_autocast(input), (weight, bias), shape)


def _conv(
    queue: WeightQueue,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    dims = weight.dim() - 2
    dilations = _each(dilation, dims)
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilations, weight.shape[2:], strict=True)]
        if any(odd := [total % 2 for total in totals]):  # an odd total pads one more on the right
            input = functional.pad(input, [side for more in reversed(odd) for side in (0, more)])
        paddings = [total // 2 for total in totals]
    else:
        paddings = [0] * dims if isinstance(padding, str) else _each(padding, dims)
    return _convolution(queue, input, weight, bias, _each(stride, dims), paddings, dilations, False, [0] * dims, groups)


def _conv_transpose(
    queue: WeightQueue,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor | None:
    dims = weight.dim() - 2
    strides, paddings, dilations = _each(stride, dims), _each(padding, dims), _each(dilation, dims)
    return _convolution(
        queue, input, weight, bias, strides, paddings, dilations, True, _each(output_padding, dims), groups
    )


_aten: Any = torch.ops.aten
_convolution_backward = _aten.convolution_backward.default
_SPLIT: dict[Any, Callable[..., Tensor | None]] = {
    functional.linear: _linear,
    _aten.linear.default: _linear,
    functional.embedding: _embedding,
    torch.embedding: _aten_embedding,
    _aten.embedding.default: _aten_embedding,
    torch.convolution: _convolution,
    _aten.convolution.default: _convolution,
    torch.conv1d: _conv,
    torch.conv2d: _conv,
    torch.conv3d: _conv,
    _aten.conv1d.default: _conv,
    _aten.conv2d.default: _conv,
    _aten.conv3d.default: _conv,
    _aten.conv1d.padding: _conv,
    _aten.conv2d.padding: _conv,
    _aten.conv3d.padding: _conv,
    torch.conv_transpose1d: _conv_transpose,
    torch.conv_transpose2d: _conv_transpose,
    torch.conv_transpose3d: _conv_transpose,
    _aten.conv_transpose1d.default: _conv_transpose,
    _aten.conv_transpose2d.input: _conv_transpose,
    _aten.conv_transpose3d.input: _conv_transpose,
}
"""The functions that are split, in both forms in which they are called: torch's functions and ATen's operators."""


def _are_leaves(weight: Tensor, bias: Tensor | None) -> bool:
    return weight.requires_grad and weight.is_leaf and (bias is None or bias.is_leaf)


def _as_autocast(input: Tensor) -> Tensor:
    """Return the input in the dtype in which autocast would compute, if it is on."""
    kind = input.device.type
    if torch.is_autocast_enabled(kind) and input.is_floating_point() and input.dtype != torch.float64:
        return input.to(torch.get_autocast_dtype(kind))
    return input


def _each(value: int | Sequence[int], dims: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


# --- their autograd functions -----------------------------------------------------------------------------------------


def _defer(
    function: type[Function], queue: WeightQueue, input: Tensor, parameters: Parameters, *settings: Any
) -> Tensor:
    return _apply(function, queue.anchor, queue, input, parameters, *settings)  # autograd does not look into the tuple


def _apply(function: type[Function], *args: Any) -> Tensor:
    return cast(Any, function).apply(*args)


class _Linear(Function):
    """`x @ w.T + b`; I is `g @ w`."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, queue: WeightQueue, input: Tensor, parameters: Parameters) -> Tensor:
        ctx.queue, ctx.parameters = queue, parameters
        weight, bias = _like(input, parameters)
        # Only I reads the weight, and a first stage has no I.
        ctx.save_for_backward(input, weight if ctx.needs_input_grad[2] else None)
        return functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs, weight = _cut_off(*ctx.saved_tensors)
        has_bias = ctx.parameters[1] is not None

        def compute() -> Parameters:
            rows = gradient.reshape(-1, gradient.shape[-1])
            in_weight = rows.t().mm(inputs.reshape(-1, inputs.shape[-1]))
            return in_weight, rows.sum(0) if has_bias else None

        ctx.queue.add(DeferredCall(inputs, gradient, ctx.parameters, compute))
        return None, None, None if weight is None else gradient.matmul(weight), None


class _Convolution(Function):
    """Any convolution; I and W are the parts of ATen's `convolution_backward`."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, queue: WeightQueue, input: Tensor, parameters: Parameters, shape: tuple[Any, ...]
    ) -> Tensor:
        ctx.queue, ctx.parameters, ctx.shape = queue, parameters, shape
        weight, bias = _like(input, parameters)
        ctx.save_for_backward(input, weight)
        return torch.convolution(input, weight, bias, *shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs, weight = _cut_off(*ctx.saved_tensors)
        bias, shape = ctx.parameters[1], ctx.shape
        sizes = None if bias is None else list(bias.shape)

        def backward(*mask: bool) -> Any:
            return _convolution_backward(gradient, inputs, weight, sizes, *shape, list(mask))

        def compute() -> Parameters:
            _, in_weight, in_bias = backward(False, True, bias is not None)
            return in_weight, in_bias

        ctx.queue.add(DeferredCall(inputs, gradient, ctx.parameters, compute))
        in_input = backward(True, False, False)[0] if ctx.needs_input_grad[2] else None
        return None, None, in_input, None, None


class _Embedding(Function):
    """Rows of the weight by their indices; I has nothing to compute."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        queue: WeightQueue,
        input: Tensor,
        parameters: Parameters,
        padding: int,
        scales: bool,
        sparse: bool,
    ) -> Tensor:
        weight, _ = parameters
        ctx.queue, ctx.parameters, ctx.how = queue, parameters, (weight.shape[0], padding, scales, sparse)
        ctx.save_for_backward(input)
        return torch.embedding(weight, input, padding, scales, sparse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (indices,), how = ctx.saved_tensors, ctx.how

        def compute() -> Parameters:
            return _aten.embedding_backward(gradient, indices, *how), None

        ctx.queue.add(DeferredCall(indices, gradient, ctx.parameters, compute))
        return (None,) * 7


def _cut_off(inputs: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return what a call saved, with inputs that do not hold the graph of the calls before it.

    The nodes of that graph hold the queue, which will hold the inputs: if W is never done, nothing would free them.
    """
    return inputs.detach(), weight


def _like(input: Tensor, parameters: Parameters) -> Parameters:
    """Return the parameters in the dtype of the input, which autocast may have changed."""
    weight, bias = parameters
    return weight.to(input.dtype), None if bias is None else bias.to(input.dtype)
