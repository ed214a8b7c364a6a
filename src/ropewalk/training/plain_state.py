"""Plain values as JSON, with their tensors kept apart: the state of optimizers, schedules and exchanges without pickle.

    {"step": tensor(3.), "betas": (0.9, 0.999), "best": inf}
        ─▶ {"step": {"$tensor": "state.step"}, "betas": {"$tuple": [0.9, 0.999]}, "best": {"$float": "inf"}}
        and {"state.step": tensor(3.)}, which go into a file of their own

A decoded value equals the encoded one, types included, except that numpy's numbers become
Python's. Any other value is refused by its place, because it would need code to rebuild.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ropewalk.training.tensor_file import check_writable

_DICTS: dict[str, type[dict[Any, Any]]] = {"$dict": dict, "$counter": Counter, "$ordered": OrderedDict}
"""Subclasses of dict that are supported; learning rate schedules keep milestones in a Counter."""
_NUMPY_NUMBERS: Any = np.bool_, np.integer, np.float16, np.float32, np.float64
_DTYPES = {str(kind).removeprefix("torch."): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
_DICT_MARKS = {kind: mark for mark, kind in _DICTS.items()}


class StateEncoder:
    """Encodes values as JSON, and collects their tensors under unique names."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        """All tensors so far."""

    def encode(self, value: Any, place: str) -> Any:
        """Encode a value for `json.dumps`.

        Args:
            value: tensors, numbers, text, None, dtypes, and lists, tuples and dictionaries of them.
            place: the path to the value, for errors and for the names of tensors.

        Returns:
            The value as JSON data, in which tensors are replaced by their names.

        Raises:
            TypeError: the value holds something else; names the place.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, _NUMPY_NUMBERS):
            return self.encode(value.item(), place)
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, Tensor):
            return self._tensor(value, place)
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if type(value) in (list, tuple, torch.Size):
            items = [self.encode(item, f"{place}.{index}") for index, item in enumerate(value)]
            return items if type(value) is list else {"$tuple": items}
        if (mark := _DICT_MARKS.get(cast(type[Any], type(value)))) is not None:
            return self._dict(value, mark, place)
        raise TypeError(
            f"{place} is {value!r} of the class {type(value).__qualname__}, which a checkpoint cannot hold, because "
            f"nothing in it is pickled; it can hold tensors, numbers, text, None, and lists, tuples and dictionaries "
            f"of them"
        )

    def _tensor(self, tensor: Tensor, place: str) -> dict[str, Any]:
        check_writable(tensor, place)
        name, again = place, 1
        while name in self.tensors:
            again += 1
            name = f"{place}#{again}"
        # Files hold rows in order; for another memory order, such as channels_last, that order is written as well.
        order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
        turned = tensor.permute(order)
        if tensor.is_contiguous() or not turned.is_contiguous():
            self.tensors[name] = tensor
            return {"$tensor": name}
        self.tensors[name] = turned
        return {"$tensor": name, "order": order}

    def _dict(self, value: Mapping[Any, Any], mark: str, place: str) -> Any:
        if mark == "$dict" and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, f"{place}.{key}") for key, item in value.items()}
        pairs = [
            [self.encode(key, f"a key of {place}"), self.encode(item, f"{place}.{key}")] for key, item in value.items()
        ]
        return {mark: pairs}


class Malformed(ValueError):
    """The data to be decoded was not encoded by `StateEncoder`."""


def decode(encoded: Any, read: Callable[[str], Tensor]) -> Any:
    """Decode a value. Only tensors are looked up by name, and types in a table.

    Args:
        encoded: what `StateEncoder.encode` returned, or `json.loads` of its text.
        read: returns a tensor by its name.

    Returns:
        The decoded value.

    Raises:
        Malformed: `encoded` is neither; names the place.
    """
    if isinstance(encoded, list):
        return [decode(item, read) for item in cast(list[Any], encoded)]
    if not isinstance(encoded, dict):
        return encoded
    known = cast(dict[str, Any], encoded)
    mark = next((key for key in known if key.startswith("$")), None)
    if mark is None:
        return {key: decode(item, read) for key, item in known.items()}
    value = known[mark]
    match mark, value:
        case _ if known.keys() - {mark, "order" if mark == "$tensor" else mark}:
            pass
        case "$float", "inf" | "-inf" | "nan":
            return float(value)
        case "$tuple", list():
            return tuple(decode(item, read) for item in cast(list[Any], value))
        case "$dtype", str() if value in _DTYPES:
            return _DTYPES[value]
        case "$tensor", str():
            return _turned(read(value), known.get("order"))
        case "$dict" | "$counter" | "$ordered", list():
            return _DICTS[mark](dict(_pair(item, read) for item in cast(list[Any], value)))
        case _:
            pass
    raise Malformed(f"{{{mark!r}: {value!r:.80}}} is not a value that was saved")


def _turned(tensor: Tensor, order: Any) -> Tensor:
    """Return the tensor with its original memory order."""
    if order is None:
        return tensor
    axes = cast(list[Any], order) if isinstance(order, list) else []
    if any(type(axis) is not int for axis in axes) or sorted(axes) != list(range(tensor.dim())):
        raise Malformed(f"a tensor of {tensor.dim()} dimensions has them in the order {order!r:.80}")
    return tensor.permute([axes.index(axis) for axis in range(len(axes))])


def _pair(item: Any, read: Callable[[str], Tensor]) -> tuple[Any, Any]:
    match item:
        case [key, value]:
            key = decode(key, read)
            try:
                hash(key)
            except TypeError:
                raise Malformed(f"{item[0]!r:.80} is the key of a dictionary") from None
            return key, decode(value, read)
        case _:
            raise Malformed(f"{item!r:.80} is an entry of a dictionary")


__all__ = ["Malformed", "StateEncoder", "decode"]
