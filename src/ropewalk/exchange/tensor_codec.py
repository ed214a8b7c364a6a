"""Encoding of trees of tensors as one block of bytes, and decoding without a copy, for links between processes.

    ┌ lengths ┬ note ┬ structure ┬ values ┬ ─ ┬ tensor 0 ┬ ─ ┬ tensor 1 ┬ ...      tensors begin at multiples of 64
    └─────────┴──────┴───────────┴────────┴───┴──────────┴───┴──────────┴

The note is the sender's, and can be read alone. The structure describes the branching of the tree, and of each tensor
its dtype, sizes, strides and whether it needs a gradient; it is encoded once for all trees of a kind. Values are leaves
that are not tensors. A tensor's memory is copied as it is, from its first to its last element, so its strides do not
change, those of an expanded tensor included: kernels add in another order for other strides, and for other alignments.
"""

from __future__ import annotations

import ctypes
import dataclasses
import pickle
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ropewalk.exchange.tree_nodes import DataclassNode, DictNode, SequenceNode
from ropewalk.transport.pickle_with_main import dumps_with_code
from ropewalk.transport.serialization import loads

ALIGN = 64
"""Alignment of tensors in bytes: that of torch's own allocator."""
_LENGTHS = struct.Struct("<III")
_MOST_SPREAD = 2
"""A tensor with more than this many elements of memory per element is made dense."""
_MOST_KINDS = 1024
"""Number of kinds of trees that are remembered. A program has a few, unless its shapes change all the time."""
_ATOMS = frozenset([int, float, bool, str, bytes, complex])
_NONE, _TENSOR, _VALUE = 0, 1, 2


class _TensorFacts(NamedTuple):
    dtype: torch.dtype
    span: int
    """Number of elements from the first to the last in memory."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    offset: int
    """Its distance from the first tensor, and its size, in bytes."""
    size_bytes: int
    is_row: bool
    """Whether it has one dimension and no gaps."""


class _Structure(NamedTuple):
    root: Any
    """The kind of the leaf, or the function that makes the node of its children, and these."""
    tensors: tuple[_TensorFacts, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _TreeKind:
    """What the sender remembers of trees of the same structure."""

    encoded: bytes
    tensors: tuple[_TensorFacts, ...]
    sparse: tuple[int, ...]
    """Indices of the tensors that have to be made dense."""
    body_bytes: int


@dataclasses.dataclass(slots=True)
class Encoded:
    """A tree that is ready to be written. It refers to the memory of its tensors."""

    size_bytes: int
    _head: bytes
    _body_at: int
    _facts: tuple[_TensorFacts, ...]
    _tensors: Sequence[Tensor]

    def write(self, address: int) -> None:
        """Copy the encoded tree to memory that begins at a multiple of `ALIGN` and has `size_bytes`."""
        ctypes.memmove(address, self._head, len(self._head))
        address += self._body_at
        for facts, tensor in zip(self._facts, self._tensors, strict=True):
            ctypes.memmove(address + facts.offset, tensor.data_ptr(), facts.size_bytes)

    def to_tensor(self) -> Tensor:
        """Return the encoded tree as a one-dimensional uint8 tensor."""
        blob = torch.empty(self.size_bytes, dtype=torch.uint8)
        self.write(blob.data_ptr())
        return blob


class TensorCodec:
    """Encodes and decodes trees, and remembers the kinds of trees it has seen. For one thread.

    Args:
        device: device of decoded tensors; None: they stay in the memory that they were decoded from.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type != "cpu" else None
        self._kinds: dict[tuple[Any, ...], _TreeKind] = {}
        self._structures: dict[bytes, _Structure] = {}

    def encode(self, tree: Any, note: bytes = b"") -> Encoded:
        """Prepare a tree for writing.

        Args:
            tree: tuples, lists, dictionaries, named tuples and dataclasses; leaves are tensors, None, and any object
                that can be pickled. Its tensors must not change before it is written.
            note: bytes that the receiver can read first.

        Returns:
            The encoded tree.

        Raises:
            NotPicklable: a leaf cannot be sent; `path` names it.
        """
        signature: list[Any] = []
        tensors: list[Tensor] = []
        values: list[Any] = []
        _visit(tree, signature, tensors, values)
        key = tuple(signature)
        kind = self._kinds.get(key)
        if kind is None:
            kind = _remember(self._kinds, key, _kind_of(key, tensors))
        for index in kind.sparse:
            facts = kind.tensors[index]
            tensors[index] = torch.empty_strided(facts.shape, facts.stride, dtype=facts.dtype).copy_(
                tensors[index].detach()
            )
        pickled = _pickled_values(values) if values else b""
        head = _LENGTHS.pack(len(note), len(kind.encoded), len(pickled)) + note + kind.encoded + pickled
        body_at = -(-len(head) // ALIGN) * ALIGN
        return Encoded(body_at + kind.body_bytes, head, body_at, kind.tensors, tensors)

    def decode(self, memory: memoryview) -> Any:
        """Decode a tree; its tensors lie in `memory`, which begins at a multiple of `ALIGN`, and keep it alive."""
        note, structure, values = _LENGTHS.unpack_from(memory)
        at = _LENGTHS.size + note
        encoded = bytes(memory[at : at + structure])
        found = self._structures.get(encoded)
        if found is None:
            signature, facts = _unpickled(encoded)
            found = _remember(self._structures, encoded, _Structure(_parse(iter(signature)), tuple(facts)))
        root, all_facts = found
        at += structure
        leaves = iter(_unpickled(bytes(memory[at : at + values])) if values else ())
        body_at = -(-(at + values) // ALIGN) * ALIGN
        return _build(root, iter([self._tensor(memory, body_at, facts) for facts in all_facts]), leaves)

    def _tensor(self, memory: memoryview, body_at: int, facts: _TensorFacts) -> Tensor:
        dtype, span, shape, stride, requires_grad, offset, _, is_row = facts
        if span:
            tensor = torch.frombuffer(memory, dtype=dtype, count=span, offset=body_at + offset)
            if not is_row:
                # In place, because a view that is made while autograd is off could not be changed in place later.
                tensor = tensor.as_strided_(shape, stride)
        else:
            tensor = torch.empty_strided(shape, stride, dtype=dtype)
        if self._device is not None:
            tensor = tensor.to(self._device)
        return tensor.requires_grad_() if requires_grad else tensor


def note_of(memory: memoryview) -> memoryview:
    """Return the note of an encoded tree."""
    return memory[_LENGTHS.size : _LENGTHS.size + _LENGTHS.unpack_from(memory)[0]]


# --- trees ------------------------------------------------------------------------------------------------------------


def _visit(tree: Any, signature: list[Any], tensors: list[Tensor], values: list[Any]) -> None:
    """Take a tree apart; `signature` distinguishes it from other kinds of trees, each node before its children.

    `pipeline.tracing.trees.flatten` does the same for models. This function runs for every message: it appends to flat
    lists, which can be used as a key, and makes no objects of its own for tuples, lists and tensors.
    """
    kind: Any = type(cast(object, tree))
    if tree is None:
        signature.append(None)
        return
    if kind is Tensor or kind is torch.nn.Parameter:
        tensor = _in_memory(tree)
        if tensor is not None:
            tensors.append(tensor)
            signature += (tensor.dtype, tensor.shape, tensor.stride(), tree.requires_grad)
            return
    elif kind is tuple or kind is list:
        signature += (kind, len(tree))
        for one in tree:
            _visit(one, signature, tensors, values)
        return
    elif kind in _ATOMS or kind is torch.Size:  # a tuple, and one value
        pass
    elif isinstance(tree, dict) and not isinstance(tree, defaultdict | Counter):
        table = cast("dict[Any, Any]", tree)
        names = tuple(table)
        signature += (DictNode(kind, names, tuple(map(type, names))), len(names))
        for one in table.values():
            _visit(one, signature, tensors, values)
        return
    elif isinstance(tree, list | tuple):
        row = cast("Sequence[Any]", tree)
        signature += (SequenceNode(kind), len(row))
        for one in row:
            _visit(one, signature, tensors, values)
        return
    elif dataclasses.is_dataclass(kind):
        fields = tuple(field.name for field in dataclasses.fields(kind) if field.init)
        signature += (DataclassNode(kind, fields), len(fields))
        for name in fields:
            _visit(getattr(cast(object, tree), name), signature, tensors, values)
        return
    signature.append(_VALUE)
    values.append(tree)


def _parse(signature: Iterator[Any]) -> Any:
    """Return the root of a tree with this signature."""
    first = next(signature)
    if first is None:
        return _NONE
    if first == _VALUE:
        return _VALUE
    if isinstance(first, torch.dtype):
        for _ in ("shape", "stride", "requires_grad"):
            next(signature)
        return _TENSOR
    return first, [_parse(signature) for _ in range(next(signature))]


def _build(node: Any, tensors: Iterator[Tensor], values: Iterator[Any]) -> Any:
    if node == _TENSOR:
        return next(tensors)
    if node == _NONE:
        return None
    if node == _VALUE:
        return next(values)
    make, children = node
    return make([_build(child, tensors, values) for child in children])


def _in_memory(tensor: Tensor) -> Tensor | None:
    """Return a tensor whose memory can be copied; None if the tensor is of an unusual kind, and pickled."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        return None
    if tensor.is_cpu and not (tensor.is_neg() or tensor.is_conj()):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().cpu().requires_grad_(tensor.requires_grad)


# --- caches -----------------------------------------------------------------------------------------------------------


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> Any:
    if len(memory) >= _MOST_KINDS:
        memory.clear()
    memory[key] = value
    return value


def _kind_of(signature: tuple[Any, ...], tensors: Sequence[Tensor]) -> _TreeKind:
    all_facts: list[_TensorFacts] = []
    sparse: list[int] = []
    end = 0
    for index, tensor in enumerate(tensors):
        shape, stride = tuple(tensor.shape), tensor.stride()
        span = _span(shape, stride)
        if span > _MOST_SPREAD * tensor.numel():
            sparse.append(index)
            stride, span = _dense(shape, stride), tensor.numel()
        is_row = len(shape) == 1 and span == shape[0]
        size_bytes = span * tensor.itemsize
        facts = _TensorFacts(tensor.dtype, span, shape, stride, tensor.requires_grad, end, size_bytes, is_row)
        all_facts.append(facts)
        end += -(-size_bytes // ALIGN) * ALIGN
    return _TreeKind(_pickled((signature, all_facts), "the tree"), tuple(all_facts), tuple(sparse), end)


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the number of elements of memory from the first to the last of a tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _dense(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Return strides without gaps, in the same order."""
    dense = [0] * len(shape)
    step = 1
    for axis in sorted(range(len(shape)), key=lambda axis: (stride[axis], -axis)):
        dense[axis] = step
        step *= shape[axis]
    return tuple(dense)


def _pickled_values(values: list[Any]) -> bytes:
    if all(type(one) in _ATOMS or (type(one) is frozenset and _ATOMS.issuperset(map(type, one))) for one in values):
        return pickle.dumps((pickle.dumps(values, 5), ()), 5)  # as `_pickled`, in a tenth of the time
    return _pickled(values, "the tree's leaves")


def _pickled(value: Any, what: str) -> bytes:
    """Pickle a value with classes of the sender's `__main__`: trees go on to workers that do not have that module."""
    payload = dumps_with_code(value, what=what)
    return pickle.dumps((payload.pickle, tuple(map(bytearray, payload.buffers))), 5)


def _unpickled(pickled: bytes) -> Any:
    return loads(*loads(pickled))


__all__ = ["ALIGN", "Encoded", "TensorCodec", "note_of"]
