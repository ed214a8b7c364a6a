"""Copies of the tensors of a value in one block of memory, and the value with slots in their place.

    {"weight": tensor, "step": 3}  ──▶  {"weight": TensorSlot(0, float32, (4, 2), ...), "step": 3} + one block of bytes

Packing again costs only the copying if the shapes stay the same: the block and the views into it are kept. A block is
sent as it is, without torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

_ALIGNMENT = 64
"""Bytes. Views of every dtype must be aligned; this is also a cache line."""


class TensorSlot(NamedTuple):
    """The position of a tensor in a block, with its dtype, shape and strides."""

    start: int
    size_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, memory: Tensor) -> Tensor:
        """Return the tensor, as a view of the block's memory."""
        values = memory[self.start : self.start + self.size_bytes].view(self.dtype)
        return values.as_strided(self.shape, self.stride)


class TensorBlock:
    """Memory that is reused for tensors of the same shapes."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.size_bytes = 0
        """Number of bytes in use."""
        self._places: list[TensorSlot] = []
        self._views: list[Tensor] = []

    def pack(self, value: Any) -> Any:
        """Copy all tensors of a value into the block; return the value with slots in their place.

        Tensors are found in dictionaries, lists and tuples; other objects are deep-copied. A tensor that occurs twice
        is copied once.
        """
        places: list[TensorSlot] = []
        tensors: list[Tensor] = []
        end = 0

        def place(tensor: Tensor) -> TensorSlot:
            nonlocal end
            size_bytes = tensor.numel() * tensor.element_size()
            places.append(TensorSlot(end, size_bytes, tensor.dtype, tuple(tensor.shape), _strides(tensor)))
            tensors.append(tensor)
            end += -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
            return places[-1]

        packed = _Mapping(Tensor, place)(value)
        if places != self._places:
            if end > self.memory.numel():
                self.memory = torch.empty(end, dtype=torch.uint8)
            self._places, self._views, self.size_bytes = places, [one.view(self.memory) for one in places], end
        with torch.no_grad():
            for view, tensor in zip(self._views, tensors, strict=True):
                view.copy_(tensor)
        return packed


def unpacked(packed: Any, memory: Tensor) -> Any:
    """Return the value with its tensors copied out of the memory: a deep copy of a view would copy the whole block."""
    return _Mapping(TensorSlot, lambda place: place.view(memory).clone())(packed)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor without holes: gradients and optimizers copy them to tensors made from it."""
    if tensor.is_contiguous():
        return tensor.stride()
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if tensor.numel() == reach:
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()


class _Mapping:
    """Maps objects of one type in dictionaries, lists and tuples; an object that occurs twice is mapped once."""

    def __init__(self, kind: type, change: Callable[[Any], Any]) -> None:
        self._kind = kind
        self._change = change
        self._known: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, int | float | str):
            return value
        if (found := self._known.get(id(value))) is None:
            found = self._known[id(value)] = self._mapped(value)
        return found

    def _mapped(self, value: Any) -> Any:
        if isinstance(value, self._kind):
            return self._change(value)
        if type(value) is dict:
            return {key: self(one) for key, one in cast("dict[Any, Any]", value).items()}
        if type(value) is list:
            return [self(one) for one in cast("list[Any]", value)]
        if type(value) is tuple:
            return tuple(self(one) for one in cast("tuple[Any, ...]", value))
        return copy.deepcopy(value)
