"""Cutting mini-batches into micro-batches, which need not be of equal size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, cast

from torch import Tensor

from ropewalk.pipeline.tracing.trees import flatten, tensors_of
from ropewalk.quantities import listed


@dataclass(frozen=True, slots=True)
class MicroBatchPiece:
    """One micro-batch: the part of it that the first and last stages of the model need."""

    step: int
    """The number of the call of `step`, and of the micro-batch in it; they seed its random numbers."""
    index: int
    inputs: Mapping[str, Any]
    """Tensors and other values by the ids of the model's input operators."""
    labels: Any
    num_samples: int


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A mini-batch, or the part that some stage needs, and the sizes of its cut; its receiver cuts it."""

    step: int
    inputs: Mapping[str, Any]
    labels: Any
    sizes: tuple[int, ...]
    """Number of samples in each micro-batch."""
    whole: frozenset[str] = frozenset()
    """Ids of inputs that are not per sample, whatever their length."""

    def pieces(self) -> list[MicroBatchPiece]:
        """Return the micro-batches; their tensors are views."""
        whole = {id: value for id, value in self.inputs.items() if id in self.whole}
        by_sample = {id: value for id, value in self.inputs.items() if id not in self.whole}
        inputs_of, labels_of = _cut(by_sample, self.sizes), _cut(self.labels, self.sizes)
        return [MicroBatchPiece(self.step, index, {**inputs_of[index], **whole}, labels_of[index], size)
                for index, size in enumerate(self.sizes)]  # fmt: skip


def split(
    inputs: Mapping[str, Any],
    labels: Any,
    num_pieces: int,
    *,
    step: int = 0,
    whole: frozenset[str] = frozenset(),
) -> list[MicroBatchPiece]:
    """Cut a mini-batch into micro-batches; see `mini_batch` for the arguments."""
    return mini_batch(inputs, labels, num_pieces, step=step, whole=whole).pieces()


def mini_batch(
    inputs: Mapping[str, Any],
    labels: Any,
    num_pieces: int,
    *,
    step: int = 0,
    whole: frozenset[str] = frozenset(),
) -> MiniBatch:
    """Cut a mini-batch along the first dimension into sizes that differ by at most one, the larger ones first.

    The number of samples is the length of the first tensor of the inputs. Tensors of that length are cut; other values
    (a mask for all samples, a number) go whole to each micro-batch. There are fewer micro-batches than asked for if
    there are fewer samples.

    Args:
        inputs: values by the ids of the model's input operators; tensors of shape (samples, ...) are cut.
        labels: any tree of tensors of shape (samples, ...).
        num_pieces: number of micro-batches.
        step: the number of the call of `step`.
        whole: ids of inputs that are not per sample, and are never cut (`ModelGraph.whole_inputs`).

    Returns:
        The mini-batch with the sizes of its micro-batches.

    Raises:
        ValueError: there is no tensor to cut, no sample, or labels for another number of samples, or a list of labels
            with a tensor for each sample.
        TypeError: labels are arrays of numpy, which would not be cut.
    """
    by_sample = {id: value for id, value in inputs.items() if id not in whole}
    counts = [tensor.shape[0] for tensor in tensors_of(by_sample) if tensor.dim()]
    if not counts:
        raise ValueError(f"no input is a tensor with a dimension for samples; got {_kinds(inputs)}")
    num_samples = counts[0]
    if num_samples == 0:
        raise ValueError("the mini-batch has no samples; skip it, or drop it in the loader")
    num_pieces = min(num_pieces, num_samples)
    if lengths := _lengths_by_sample(labels, num_samples):
        if num_pieces > 1:
            raise ValueError(
                f"labels hold a list with tensors for each of the {num_samples} samples, as their lengths differ "
                f"({listed(lengths, 4)}), and it is not cut into micro-batches. Pad them to one tensor of shape "
                f"({num_samples}, ...), with a tensor of their lengths beside it; or train with micro_batches=1"
            )
        return MiniBatch(step, inputs, labels, (num_samples,), whole)
    labelled = [tensor.shape[0] for tensor in tensors_of(labels) if tensor.dim()]
    if labelled and num_samples not in labelled:
        raise ValueError(f"there are {num_samples} samples, but labels for {labelled[0]}; both begin with the samples")
    if arrays := [leaf for leaf in flatten(labels)[0] if hasattr(leaf, "__array__") and not isinstance(leaf, Tensor)]:
        raise TypeError(
            f"labels hold a {type(arrays[0]).__name__}, which would go whole to each micro-batch; give tensors, as "
            f"torch.from_numpy makes of arrays"
        )
    size, larger = divmod(num_samples, num_pieces)
    return MiniBatch(step, inputs, labels, tuple(size + (index < larger) for index in range(num_pieces)), whole)


def _lengths_by_sample(tree: Any, num_samples: int) -> list[str]:
    """Return the lengths in a list in the labels that seems to have tensors of another length for each sample.

    Of two samples such a list could as well be that of their labels and of weights.
    """
    if isinstance(tree, Mapping):
        inside: Sequence[Any] = list(cast("Mapping[Any, Any]", tree).values())
    elif isinstance(tree, list | tuple):
        inside = cast("Sequence[Any]", tree)
        first = [next((tensor for tensor in tensors_of(one) if tensor.dim()), None) for one in inside]
        lengths = [len(tensor) for tensor in first if tensor is not None]
        if len(inside) == len(lengths) == num_samples > 2 and len(set(lengths)) > 1:
            return [str(length) for length in lengths]
    else:
        return []
    for one in inside:
        if found := _lengths_by_sample(one, num_samples):
            return found
    return []


def _cut(tree: Any, sizes: Sequence[int]) -> list[Any]:
    """Return the part of a tree that belongs to each micro-batch."""
    leaves, structure = flatten(tree)
    num_samples = sum(sizes)

    def pieces_of(leaf: Any) -> Iterable[Any]:
        if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == num_samples:
            return cast("tuple[Tensor, ...]", leaf.split(list(sizes)))  # pyright: ignore[reportUnknownMemberType]
        return repeat(leaf, len(sizes))

    if not leaves:
        return [tree] * len(sizes)
    return [structure.unflatten(row) for row in zip(*map(pieces_of, leaves), strict=True)]


def _kinds(inputs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {type(value).__name__}" for name, value in inputs.items()) or "no inputs at all"
