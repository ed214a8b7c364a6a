"""Buckets: the parameters that share one flat buffer, and where each parameter lies in it.

    parameters, in the order of the model      a  b  c  d  e  f
    buckets, in the order of the backward      [f] [e d] [c b a]      the first is small: sending begins early

Many small messages cost more than one large one, so gradients are fused (Horovod's tensor fusion, DDP's buckets).
Gradients become ready from the last layer to the first, so buckets are filled in that order, and the first is in flight
while the backward continues. Pure: nothing here sends or computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.quantities import listed

BUCKET_BYTES = 25 << 20
"""As in DDP: large enough for the bandwidth of a link, small enough to overlap with the backward."""
FIRST_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BucketEntry:
    """The name, shape, dtype and device of one parameter of an exchange."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def numel(self) -> int:
        """Number of components; 1 for a scalar."""
        return torch.Size(self.shape).numel()

    @property
    def size_bytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> BucketEntry:
        return cls(name, tuple(tensor.shape), tensor.dtype, str(tensor.device))


@dataclass(frozen=True)
class Layout:
    """The contents of a flat buffer: parameters of one dtype and device, one after the other."""

    entries: tuple[BucketEntry, ...]

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("a bucket without parameters has nothing to exchange")
        kinds = {(entry.dtype, entry.device) for entry in self.entries}
        if len(kinds) > 1:
            raise ValueError(f"one buffer cannot hold several dtypes or devices: {sorted(map(str, kinds))}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @property
    def dtype(self) -> torch.dtype:
        return self.entries[0].dtype

    @property
    def device(self) -> str:
        return self.entries[0].device

    @cached_property
    def numel(self) -> int:
        """Number of components of all parameters together."""
        return sum(entry.numel for entry in self.entries)

    @property
    def size_bytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @cached_property
    def slices(self) -> Mapping[str, slice]:
        """The slice of each parameter, by name, in the order of the buffer."""
        ends = list(itertools.accumulate(entry.numel for entry in self.entries))
        return {
            entry.name: slice(start, end) for entry, start, end in zip(self.entries, [0, *ends[:-1]], ends, strict=True)
        }

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's part of a flat buffer, as a view in the parameter's shape."""
        for entry, part in zip(self.entries, self.slices.values(), strict=True):
            yield entry.name, flat[part].view(entry.shape)

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """Return copies of each parameter's part, for a `state_dict` that does not depend on buckets."""
        return {name: part.clone() for name, part in self.views(flat)}

    def fill(self, flat: Tensor, named: Mapping[str, Tensor]) -> None:
        """Write tensors, by name, to their places in a flat buffer; other places keep their values.

        Args:
            flat: one-dimensional, as this layout says; changed in place.
            named: tensors by parameter name, with the parameter's number of components.

        Raises:
            ValueError: a tensor has another number of components than the parameter of its name.
        """
        for entry in self.entries:
            tensor = named.get(entry.name)
            if tensor is None:
                continue
            if tensor.numel() != entry.numel:
                raise ValueError(
                    f"the state of {entry.name!r} has {tensor.numel()} components, the parameter {entry.numel} "
                    f"(shape {entry.shape}); it belongs to another model"
                )
            flat[self.slices[entry.name]] = tensor.reshape(-1).to(flat)


def check_names(entries: Sequence[BucketEntry]) -> None:
    """Raise `ValueError` if there are no parameters, or if two have the same name."""
    names = [entry.name for entry in entries]
    if not names:
        raise ValueError("there are no parameters to exchange gradients of; does any of them require a gradient?")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"two parameters have the same name: {', '.join(twice)}")


def check_real(entries: Iterable[BucketEntry], means: str) -> None:
    """Raise `ExchangeInvalid` if a parameter is complex: what goes by these means are real numbers.

    Args:
        entries: the parameters.
        means: the compressor or exchange, for the message.
    """
    found = [entry for entry in entries if entry.dtype.is_complex]
    if found:
        names = listed([entry.name for entry in found], 3)
        raise ExchangeInvalid(
            f"{means} carries real numbers, and {names} of the parameters are {found[0].dtype}; keep them as pairs of "
            "real numbers (torch.view_as_real), or exchange them by AllReduce() without a compressor"
        )


def plan_buckets(
    entries: Iterable[BucketEntry], bucket_bytes: int = BUCKET_BYTES, first_bucket_bytes: int = FIRST_BUCKET_BYTES
) -> tuple[Layout, ...]:
    """Distribute parameters over buckets, in the order in which the backward makes their gradients ready.

    Args:
        entries: the parameters in the order of the model, so that the last one is ready first.
        bucket_bytes: size in bytes at which a bucket is closed; a larger parameter has a bucket to itself.
        first_bucket_bytes: the same for the first bucket of each dtype and device.

    Returns:
        The buckets in the order of the backward, by their first parameter.

    Raises:
        ValueError: there are no parameters, two have the same name, or a size is below 1.
    """
    backward = list(entries)[::-1]
    check_names(backward)
    if bucket_bytes < 1 or first_bucket_bytes < 1:
        raise ValueError(f"a bucket holds at least 1 byte, not {min(bucket_bytes, first_bucket_bytes)}")
    open_buckets: dict[tuple[torch.dtype, str], list[int]] = {}
    buckets: list[list[int]] = []
    caps: dict[tuple[torch.dtype, str], int] = {}
    for at, entry in enumerate(backward):
        kind = (entry.dtype, entry.device)
        cap = caps.setdefault(kind, first_bucket_bytes)
        bucket = open_buckets.setdefault(kind, [])
        if not bucket:
            buckets.append(bucket)
        bucket.append(at)
        if sum(backward[index].size_bytes for index in bucket) >= cap:
            del open_buckets[kind]
            caps[kind] = bucket_bytes
    return tuple(Layout(tuple(backward[at] for at in bucket)) for bucket in buckets)
