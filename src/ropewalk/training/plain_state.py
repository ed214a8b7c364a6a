"""Plain values as JSON, with their tensors kept apart: the state of optimizers, schedules and exchanges without pickle.

    {"step": tensor(3.), "betas": (0.9, 0.999), "best": inf}
        ─▶ {"step": {"$tensor": "state.step"}, "betas": {"$tuple": [0.9, 0.999]}, "best": {"$float": "inf"}}
        and {"state.step": tensor(3.)}, which go into a file of their own

A decoded value equals the encoded one, types included, except that numpy's numbers become
Python's. Any other value is refused by its place, because it would need code to rebuild.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ropewalk.tracking.state_tree import MalformedTree, PlainEncoder, decode_pairs, decode_plain, malformed
from ropewalk.training.tensor_file import check_writable

_DICTS: dict[str, type[dict[Any, Any]]] = {"$counter": Counter, "$ordered": OrderedDict}
"""Subclasses of dict that are supported; learning rate schedules keep milestones in a Counter."""
_NUMPY_NUMBERS: Any = np.bool_, np.integer, np.float16, np.float32, np.float64
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
_DICT_MARKS = {kind: mark for mark, kind in _DICTS.items()}


class StateEncoder(PlainEncoder[Tensor]):
    """Encodes plain values, tensors, dtypes, sizes, and the dictionaries that torch keeps."""

    def special(self, value: Any, place: str) -> Any:
        """See `PlainEncoder`."""
        if isinstance(value, _NUMPY_NUMBERS):
            return self.encode(value.item(), place)
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if type(value) is torch.Size:
            return self.sequence(value, place)
        if (mark := _DICT_MARKS.get(cast(type[Any], type(value)))) is not None:
            return self.mapping(value, place, mark)
        raise TypeError(
            f"{place} is {value!r} of the class {type(value).__qualname__}, which a checkpoint cannot hold, because "
            f"nothing in it is pickled; it can hold tensors, numbers, text, None, and lists, tuples and dictionaries "
            f"of them"
        )

    def _tensor(self, tensor: Tensor, place: str) -> dict[str, Any]:
        check_writable(tensor, place)
        # Files hold rows in order; for another memory order, such as channels_last, that order is written as well.
        order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
        turned = tensor.permute(order)
        if tensor.is_contiguous() or not turned.is_contiguous():
            return {"$tensor": self.keep(tensor, place)}
        return {"$tensor": self.keep(turned, place), "order": order}


def decode(encoded: Any, read: Callable[[str], Tensor]) -> Any:
    """Decode a value. Only tensors are looked up by name, and types in a table.

    Args:
        encoded: what `StateEncoder.encode` returned, or `json.loads` of its text.
        read: returns a tensor by its name.

    Returns:
        The decoded value.

    Raises:
        MalformedTree: `encoded` is neither.
    """

    def special(known: dict[str, Any]) -> Any:
        ((mark, value), *more) = known.items()
        match mark, value, more:
            case "$tensor", str(), [] | [("order", _)]:
                return _turned(read(value), known.get("order"))
            case "$dtype", str(), [] if value in _DTYPES:
                return _DTYPES[value]
            case "$counter" | "$ordered", list(), []:
                return _DICTS[mark](decode_pairs(cast(list[Any], value), special))
            case _:
                raise malformed(known)

    return decode_plain(encoded, special)


def _turned(tensor: Tensor, order: Any) -> Tensor:
    """Return the tensor with its original memory order."""
    if order is None:
        return tensor
    axes = cast(list[Any], order) if isinstance(order, list) else []
    if any(type(axis) is not int for axis in axes) or sorted(axes) != list(range(tensor.dim())):
        raise MalformedTree(f"a tensor of {tensor.dim()} dimensions has them in the order {order!r:.80}")
    return tensor.permute([axes.index(axis) for axis in range(len(axes))])


__all__ = ["StateEncoder", "decode"]
