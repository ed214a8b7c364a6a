"""Measures the bytes that each operator of a traced model keeps for its backward, by autograd's saved-tensor hooks.

A tensor counts as its storage, whole and once, whatever part or view of it was saved:

    the storage of                    counts as
    a parameter or a buffer           nothing: it exists anyway
    the value of an operator          `SavedValue(operator, bytes)`, of the first operator whose value it is
    nothing that crosses operators    `saved_bytes`, the operator's own
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ropewalk.pipeline.operator_runs import OperatorRuns
from ropewalk.pipeline.profiles import SavedValue
from ropewalk.pipeline.tracing.aliasing import storage_of
from ropewalk.pipeline.tracing.trees import tensors_of


@dataclass(slots=True)
class Bytes:
    """The sizes of one operator, in bytes."""

    output_bytes: int = 0
    gradient_bytes: int = 0
    saved_bytes: int = 0
    saved: tuple[SavedValue, ...] = ()
    held_bytes: int = 0
    """Bytes that a split backward keeps from I to W."""


def measure_bytes(runs: OperatorRuns) -> dict[str, Bytes]:
    """Run all operators once, with split and whole backward, and count the bytes that they make and keep.

    Returns:
        The sizes of each operator, by its id.
    """
    found = {id: _of_value(value) for id, value in runs.inputs.items()}
    values: dict[str, Any] = dict(runs.inputs)
    free = _storages([*runs.parameters.values(), *runs.buffers.values()])
    owners: dict[int, str] = {}
    for id, value in values.items():
        _own(owners, id, value)
    for id in runs.programs:
        kept: list[Tensor] = []

        def keep(tensor: Tensor, kept: list[Tensor] = kept) -> Tensor:
            kept.append(tensor.detach())  # the node of an output would hold itself by it, and never be freed
            return kept[-1]

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            _, value, _ = runs.forward(id, values)
        values[id] = value  # all are kept to the end: the allocator may use a freed storage's address again
        found[id] = _of_value(value)
        _own(owners, id, value)
        storages = {key: size for key, size in _storages(kept).items() if key not in free}
        found[id].saved_bytes = sum(size for key, size in storages.items() if key not in owners)
        found[id].saved = _saved(storages, owners)
        found[id].held_bytes = sum(size for key, size in _storages(_held(runs, id, values)).items() if key not in free)
    return found


def _held(runs: OperatorRuns, id: str, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The tensors that a split backward of one operator keeps from I to W."""
    run, value, _ = runs.forward(id, values, split=True)
    assert run.queue is not None
    tensors = [tensor for tensor in tensors_of(value) if tensor.requires_grad]
    wanted = [leaf for *_, leaf in run.leaves] + run.parameters
    if tensors and wanted:
        run.queue.input_gradients(tensors, wanted, [torch.ones_like(tensor) for tensor in tensors])
    return run.queue.kept


def _saved(storages: Mapping[int, int], owners: Mapping[int, str]) -> tuple[SavedValue, ...]:
    sizes: dict[str, int] = {}
    for key, size in storages.items():
        if key in owners:
            sizes[owners[key]] = sizes.get(owners[key], 0) + size
    return tuple(SavedValue(operator, size) for operator, size in sizes.items())


def _of_value(value: Any) -> Bytes:
    tensors = tensors_of(value)
    return Bytes(
        output_bytes=sum(tensor.nbytes for tensor in tensors),
        gradient_bytes=sum(tensor.nbytes for tensor in tensors if tensor.requires_grad),
    )


def _own(owners: dict[int, str], id: str, value: Any) -> None:
    for key in _storages(tensors_of(value)):
        owners.setdefault(key, id)


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes of each storage that these tensors use, by its address."""
    return {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
