"""Copies of tensors in one block of memory, with the values that they were in beside it.

    {"weight": tensor, "step": 3}  ──▶  {"weight": TensorSlot(0, float32, (4, 2), ...), "step": 3} + one block of bytes

What was packed once is packed again at the cost of copying alone, if the shapes stay: the
block and the views into it are kept. And a block is sent as it is, without asking torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

#: Views of every dtype must be aligned; this also is a line of the cache.
_ALIGNMENT = 64


class TensorSlot(NamedTuple):
    """Where a tensor is in a block, and what it is."""

    start: int
    size_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, memory: Tensor) -> Tensor:
        """The tensor itself."""
        values = memory[self.start : self.start + self.size_bytes].view(self.dtype)
        return values.as_strided(self.shape, self.stride)


class TensorBlock:
    """Memory that is used again and again for tensors of the same shapes."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        #: How much of it is in use.
        self.size_bytes = 0
        self._places: list[TensorSlot] = []
        self._views: list[Tensor] = []

    def pack(self, value: Any) -> Any:
        """Copy all tensors of a value; gives the value with places for them.

        Tensors are found in dictionaries, lists and tuples; of anything else in it the result has deep copies. What
        comes twice is copied once.
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
    """The value with its tensors, copied out of the memory: a deep copy of a view would have all of it."""
    return _Mapping(TensorSlot, lambda place: place.view(memory).clone())(packed)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Those of the tensor, if it has no holes: gradients and optimizers give what is made from it the same."""
    if tensor.is_contiguous():
        return tensor.stride()
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if tensor.numel() == reach:
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()


class _Mapping:
    """Maps what is of one kind in dictionaries, lists and tuples; what comes twice once."""

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
