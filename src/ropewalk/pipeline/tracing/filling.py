"""Copies of a model with other values in its parameters and buffers; the model may be on meta."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ropewalk.pipeline.tracing.named_tensors import tensors_of


def filled(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a model that has these values.

    Args:
        model: the model; not changed. Its tensors on meta are on the CPU in the copy.
        tensors: parameters and buffers by name (the first, if one has several), with the shapes of the model's; they
            are copied. Other tensors keep the model's values.

    Raises:
        ValueError: a tensor that the model has on meta is not given.
    """
    parameters, buffers, _ = tensors_of(model)
    own = {**parameters, **buffers}
    if missing := [name for name, tensor in own.items() if tensor.is_meta and name not in tensors]:
        raise ValueError(
            f"there are no numbers for {missing[0]!r}{f' and {len(missing) - 1} others' if missing[1:] else ''}: "
            f"{type(model).__name__} has them on the device 'meta', and they are not given"
        )
    # The tensors that deepcopy uses for those on meta, wherever the model holds them: ties and lists of weights
    # survive.
    made = {id(tensor): _empty(tensor) for tensor in own.values() if tensor.is_meta}
    copied = copy.deepcopy(model, dict[int, object](made))
    parameters, buffers, _ = tensors_of(copied)
    with torch.no_grad():
        for name, tensor in {**parameters, **buffers}.items():
            if name in tensors:
                tensor.copy_(tensors[name])
    return copied


def _empty(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="cpu", requires_grad=False)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
