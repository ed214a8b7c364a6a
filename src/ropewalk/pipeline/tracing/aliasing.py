"""What calls do to memory, found by running a model's calls once on its example inputs.

    batch_norm ──▶ [storage 7] ──▶ relu_ writes 7 ──▶ conv
                                                          between batch_norm and relu_ no cut is legal:
                                                          a copy on another device would miss the write

Schemas of ATen tell less: they do not cover untraced modules, `batch_norm` writes statistics that its schema does not
mention, and `reshape` makes a view or a copy depending on its input.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ropewalk.pipeline.generator_states import equal_states, states_for
from ropewalk.pipeline.tracing.captured import Captured, run_node
from ropewalk.pipeline.tracing.fake_tensors import is_fake
from ropewalk.pipeline.tracing.random_calls import RandomCalls
from ropewalk.pipeline.tracing.trees import LEAF, flatten


@dataclass(frozen=True, slots=True)
class ObservedValue:
    """What one call did."""

    storages: frozenset[int]
    """The storages of its value."""
    written: frozenset[int]
    """The storages of earlier values that it wrote to."""
    size_bytes: int
    """Bytes of its value."""
    is_random: bool = False
    has_tensor: bool = True
    is_tensor: bool = True
    """Whether the value is one tensor, not a tuple or a list of tensors."""
    is_leaf: bool = True
    """Whether the value is not a tuple, list or dictionary."""
    requires_grad: bool = False


def observe(captured: Captured, values: Mapping[fx.Node, Any]) -> dict[fx.Node, ObservedValue]:
    """Run every call once, and return what each did.

    Args:
        captured: the calls.
        values: a tensor for each placeholder; buffers are written to, inputs may be.
    """
    results: dict[fx.Node, Any] = dict(values)
    seen: dict[fx.Node, ObservedValue] = {}
    for node, value in values.items():
        seen[node] = _observed(value, frozenset(), False)
    draws = _draws_on_fakes if any(isinstance(one, Tensor) and is_fake(one) for one in values.values()) else _draws
    for node in captured.calls():
        read = list(tensors_in([results[one] for one in node.all_input_nodes]))
        before = [tensor._version for tensor in read]
        with draws(read) as is_random:
            result = run_node(node, results, captured.attributes)
        written = frozenset(
            storage
            for tensor, version in zip(read, before, strict=True)
            if tensor._version != version and (storage := storage_of(tensor))
        )
        results[node] = result  # kept, so that its storage's id is not reused
        seen[node] = _observed(result, written, is_random())
    return seen


def _observed(value: Any, written: frozenset[int], is_random: bool) -> ObservedValue:
    leaves, structure = flatten(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return ObservedValue(
        frozenset(storage for tensor in tensors if (storage := storage_of(tensor))),
        written,
        sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        is_random,
        has_tensor=bool(tensors),
        is_tensor=isinstance(value, Tensor),
        is_leaf=structure is LEAF,
        requires_grad=any(tensor.requires_grad for tensor in tensors),
    )


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in a tree."""
    return (leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor))


def storage_of(tensor: Tensor) -> int:
    """Return the id of a tensor's memory; 0 if it has none."""
    if tensor.layout is not torch.strided:
        return 0
    # The storage of a fake tensor has no address, but it is one object for all tensors that share it.
    return id(tensor.untyped_storage()) if is_fake(tensor) else tensor.untyped_storage().data_ptr()


@contextmanager
def _draws(read: list[Tensor]) -> Generator[Callable[[], bool]]:
    """Yield a function that tells whether random numbers were drawn in the block, from the state of the generators."""
    states = states_for(read)
    yield lambda: not equal_states(states, states_for(read))


@contextmanager
def _draws_on_fakes(_: list[Tensor]) -> Generator[Callable[[], bool]]:
    """The same for fake tensors, for which no numbers are really drawn."""
    calls: list[None] = []
    with RandomCalls(lambda _, __: calls.append(None)):
        yield lambda: bool(calls)
