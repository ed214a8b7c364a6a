"""Trees of tensors, arrays and plain values as JSON, with the tensors kept apart: states without pickle.

    {"step": 3, "model": {"weight": tensor}}
        ─▶ {"step": 3, "model": {"weight": {"$tensor": "model.weight", "of": "torch"}}}   and the bytes of model.weight

Neither numpy nor torch is imported unless a tree holds arrays or tensors. A trainer's own states, in which tensors keep
their memory orders, have the same plain part: `training/plain_state.py`.
"""

from __future__ import annotations

import importlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

_NUMPY_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_TORCH_CODES = {**_NUMPY_CODES, "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
_NUMPY_DTYPES = {code: name for name, code in _NUMPY_CODES.items()}
_TORCH_DTYPES = {code: name for name, code in _TORCH_CODES.items()}


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """The elements of a tensor or an array, in row order."""

    dtype: str
    """As safetensors names it: F32, BF16, ..."""
    shape: tuple[int, ...]
    content: memoryview | bytearray


T = TypeVar("T")


class PlainEncoder(ABC, Generic[T]):
    """Encodes plain values as JSON data, and collects their tensors under unique names."""

    def __init__(self) -> None:
        self.tensors: dict[str, T] = {}
        """All tensors so far, by name."""

    def encode(self, value: Any, place: str) -> Any:
        """Encode a value for `json.dumps`.

        Args:
            value: None, booleans, numbers, texts; lists, tuples and dictionaries; and what the subclass encodes.
            place: the path to the value, for errors and for the names of tensors; empty for the tree itself.

        Returns:
            JSON data.

        Raises:
            TypeError: the value holds something else; names its place.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if type(value) is dict:
            return self.mapping(cast("dict[Any, Any]", value), place)
        if type(value) in (list, tuple):
            return self.sequence(value, place)
        return self.special(value, place)

    @abstractmethod
    def special(self, value: Any, place: str) -> Any:
        """Encode another value; raises TypeError as `encode`."""

    def sequence(self, value: Sequence[Any], place: str) -> Any:
        """Encode a list, or another sequence as a tuple."""
        encoded = [self.encode(item, _below(place, str(index))) for index, item in enumerate(value)]
        return encoded if isinstance(value, list) else {"$tuple": encoded}

    def mapping(self, value: Mapping[Any, Any], place: str, mark: str = "$dict") -> Any:
        """Encode a mapping; a mark other than "$dict" says of which class it is."""
        entries = value.items()
        if mark == "$dict" and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, _below(place, key)) for key, item in entries}
        pairs = [
            [self.encode(key, f"a key of {place}"), self.encode(item, _below(place, str(key)))] for key, item in entries
        ]
        return {mark: pairs}

    def keep(self, tensor: T, place: str) -> str:
        """Keep a tensor, and return its name."""
        name, again = place or "state", 1
        while name in self.tensors:
            again += 1
            name = f"{place}#{again}"
        self.tensors[name] = tensor
        return name


class MalformedTree(ValueError):
    """The data to be decoded was not encoded by a `PlainEncoder`."""


def decode_plain(encoded: Any, special: Callable[[dict[str, Any]], Any]) -> Any:
    """Decode what a `PlainEncoder` has encoded.

    Args:
        encoded: the JSON data.
        special: decodes what `PlainEncoder.special` has encoded: an object with a key that begins with "$".

    Raises:
        MalformedTree: `encoded` is something else.
    """
    if isinstance(encoded, list):
        return [decode_plain(item, special) for item in cast("list[Any]", encoded)]
    if not isinstance(encoded, dict):
        return encoded
    known = cast("dict[str, Any]", encoded)
    if not any(key.startswith("$") for key in known):
        return {key: decode_plain(item, special) for key, item in known.items()}
    if len(known) == 1:
        match known:
            case {"$float": "inf" | "-inf" | "nan" as text}:
                return float(text)
            case {"$tuple": list()}:
                return tuple(decode_plain(item, special) for item in known["$tuple"])
            case {"$dict": list()}:
                return decode_pairs(known["$dict"], special)
            case _:
                pass
    return special(known)


def decode_pairs(pairs: list[Any], special: Callable[[dict[str, Any]], Any]) -> dict[Any, Any]:
    """Decode the entries of a mapping; arguments and errors as for `decode_plain`."""
    decoded: dict[Any, Any] = {}
    for pair in pairs:
        match pair:
            case [key, value]:
                found = decode_plain(key, special)
                try:
                    hash(found)
                except TypeError:
                    raise MalformedTree(f"{key!r:.80} is the key of a dictionary") from None
                decoded[found] = decode_plain(value, special)
            case _:
                raise MalformedTree(f"{pair!r:.80} is an entry of a dictionary")
    return decoded


def malformed(known: Mapping[str, Any]) -> MalformedTree:
    """Return the error for a mark that no encoder makes."""
    return MalformedTree(f"{known!r:.80} is not a value that was saved")


class TreeEncoder(PlainEncoder[TensorBytes]):
    """Encodes trees of tensors, arrays, numbers, texts and bytes, and objects with a `state_dict` as that."""

    def special(self, value: Any, place: str) -> Any:
        """See `PlainEncoder`; subclasses of lists, tuples and mappings come back as these."""
        if isinstance(value, bytes | bytearray):
            return {"$bytes": bytes(value).hex()}
        if isinstance(value, Mapping):
            return self.mapping(cast("Mapping[Any, Any]", value), place)
        if isinstance(value, list | tuple):
            return self.sequence(cast("Sequence[Any]", value), place)
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return {"$tensor": self.keep(_of_torch(value, place, torch), place), "of": "torch"}
        if numpy is not None and isinstance(value, numpy.ndarray):
            return {"$tensor": self.keep(_of_numpy(value, place, numpy), place), "of": "numpy"}
        if numpy is not None and isinstance(value, numpy.generic):
            plain = value.item()
            if not isinstance(plain, numpy.generic):  # as that of a longdouble is, for which Python has no number
                return self.encode(plain, place)
        state_dict = getattr(value, "state_dict", None)
        if callable(state_dict):
            return self.encode(state_dict(), place)
        raise TypeError(
            f"{place or 'the state'} is {value!r:.80} of type {type(value).__qualname__}, which a checkpoint cannot "
            f"hold, because nothing in it is pickled; it holds tensors, arrays, numbers, texts, bytes, None, lists, "
            f"tuples and dictionaries of these, and objects with a state_dict"
        )


def decode_tree(encoded: Any, read: Callable[[str], TensorBytes]) -> Any:
    """Decode a tree.

    Args:
        encoded: the JSON data.
        read: returns a tensor by name, in memory that may be kept.

    Returns:
        The tree: tensors of torch on the CPU, arrays of numpy, plain values, lists, tuples and dicts.

    Raises:
        MalformedTree: `encoded` is not from `TreeEncoder`.
        ModuleNotFoundError: the tree holds tensors, and torch is not installed here; or arrays, and numpy is not.
    """

    def special(known: dict[str, Any]) -> Any:
        match known:
            case {"$bytes": str(text)}:
                return bytes.fromhex(text)
            case {"$tensor": str(name), "of": "torch"}:
                return _to_torch(read(name), name)
            case {"$tensor": str(name), "of": "numpy"}:
                return _to_numpy(read(name), name)
            case _:
                raise malformed(known)

    return decode_plain(encoded, special)


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _of_torch(tensor: Any, place: str, torch: Any) -> TensorBytes:
    code = _TORCH_CODES.get(str(tensor.dtype).removeprefix("torch."))
    if code is None or tensor.layout is not torch.strided or tensor.is_meta:
        raise TypeError(
            f"{place or 'the state'} is a tensor of {tensor.dtype} with layout {tensor.layout} on {tensor.device}; a "
            f"checkpoint holds dense tensors of {', '.join(_TORCH_CODES)}"
        )
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return TensorBytes(code, tuple(tensor.shape), memoryview(dense.reshape(-1).view(torch.uint8).numpy()))


def _of_numpy(array: Any, place: str, numpy: Any) -> TensorBytes:
    code = _NUMPY_CODES.get(array.dtype.name)
    if code is None:
        raise TypeError(
            f"{place or 'the state'} is an array of {array.dtype}; a checkpoint holds arrays of "
            f"{', '.join(_NUMPY_CODES)}"
        )
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat = numpy.ascontiguousarray(little).reshape(-1)
    return TensorBytes(code, tuple(array.shape), memoryview(flat.view(numpy.uint8)))


def _to_torch(tensor: TensorBytes, name: str) -> Any:
    torch = importlib.import_module("torch")
    dtype = getattr(torch, _TORCH_DTYPES[tensor.dtype])
    if not len(tensor.content):  # torch.frombuffer refuses empty buffers
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(tensor.content, dtype=dtype).reshape(tensor.shape)


def _to_numpy(tensor: TensorBytes, name: str) -> Any:
    numpy = importlib.import_module("numpy")
    if tensor.dtype not in _NUMPY_DTYPES:
        raise MalformedTree(f"{name} is an array of {tensor.dtype}, which numpy does not have")
    return numpy.frombuffer(tensor.content, dtype=_NUMPY_DTYPES[tensor.dtype]).reshape(tensor.shape)


__all__ = [
    "MalformedTree",
    "PlainEncoder",
    "TensorBytes",
    "TreeEncoder",
    "decode_pairs",
    "decode_plain",
    "decode_tree",
    "malformed",
]
