"""`BucketStore`: the buckets of an exchange, and their state, which moves by parameter name to later buckets.

layouts ── make ──▶ buckets ◀── add (a bucket that was filled elsewhere)
                       │ drop: their state, by name
                       ▼
                    carried ── make, add ──▶ other buckets of the same parameters
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.open_step import Bucket

State = dict[str, Any]
"""State by its kind and then by parameter; a kind that is not a mapping is the same for all parameters."""


class BucketKeeper(Protocol):
    """Keeps what belongs to a bucket in addition to its memory, such as a compressor's residual."""

    def prepare(self, bucket: Bucket) -> None:
        """Allocate what a new bucket needs."""
        ...

    def discard(self, bucket: Bucket) -> None:
        """Release a bucket that is no longer used; `bucket_state` has returned its state before."""
        ...

    def bucket_state(self, bucket: Bucket) -> State:
        """Return copies of the committed state of a bucket."""
        ...

    def load_bucket_state(self, bucket: Bucket, state: State) -> None:
        """Load state into a bucket; state of other parameters is ignored."""
        ...


class BucketStore:
    """The buckets of one exchange, in the order of sending.

    Args:
        keeper: keeps the state that belongs to each bucket.

    Attributes:
        planned: the layouts from which `make` makes buckets.
    """

    def __init__(self, keeper: BucketKeeper) -> None:
        self._keeper = keeper
        self.planned: tuple[Layout, ...] = ()
        self._buckets: list[Bucket] = []
        self._by_name: dict[str, Bucket] = {}
        self._carried: State = {}

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._buckets)

    def __len__(self) -> int:
        return len(self._buckets)

    def __getitem__(self, index: int) -> Bucket:
        return self._buckets[index]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of the buckets; before these are made, the planned layouts."""
        return tuple(bucket.layout for bucket in self._buckets) or self.planned

    def of(self, name: str) -> Bucket:
        """Return the bucket of a parameter.

        Raises:
            KeyError: there is no such parameter.
        """
        if name not in self._by_name:
            raise KeyError(f"no parameter {name!r} is bound; bound are {', '.join(sorted(self._by_name)[:5])}, ...")
        return self._by_name[name]

    def plan(self, layouts: Sequence[Layout]) -> None:
        """Drop the buckets and plan others, which the next `make` makes; state is carried over by name."""
        self.drop()
        self.planned = tuple(layouts)

    def make(self) -> None:
        """Make the planned buckets, unless they exist."""
        if not self._buckets:
            for index, layout in enumerate(self.planned):
                self.add(index, layout, torch.zeros(layout.numel, dtype=layout.dtype, device=layout.device))
            self._carried = {}

    def add(self, index: int, layout: Layout, flat: Tensor) -> None:
        """Add a bucket in this memory (flat, as `layout` says), with the state that was carried for its parameters."""
        bucket = Bucket(index, layout, flat)
        self._buckets.append(bucket)
        self._by_name.update(dict.fromkeys(layout.names, bucket))
        self._keeper.prepare(bucket)
        if self._carried:
            self._keeper.load_bucket_state(bucket, self._carried)

    def drop(self, first: int = 0) -> None:
        """Drop the buckets from index `first` on; their state is carried."""
        self._carried = self.state(first)
        for bucket in self._buckets[first:]:
            self._keeper.discard(bucket)
        del self._buckets[first:]

    def clear(self) -> None:
        """Drop all buckets, and forget their parameters; state is carried by name to the buckets of the next plan."""
        self.drop()
        self._by_name.clear()

    def forget_carried(self) -> None:
        """Forget the carried state: the step has succeeded, and all buckets have taken theirs."""
        self._carried = {}

    def state(self, first: int = 0) -> State:
        """Return the carried state merged with the committed state of the buckets from index `first` on."""
        merged: State = {}
        for state in (self._carried, *(self._keeper.bucket_state(bucket) for bucket in self._buckets[first:])):
            for kind, part in state.items():
                if isinstance(part, Mapping):
                    merged.setdefault(kind, {}).update(cast(Mapping[str, Any], part))
                else:
                    merged[kind] = part
        return merged

    def load(self, state: Mapping[str, Any]) -> None:
        """Load state into the existing buckets and into those that are still to be made; what it lacks begins anew."""
        self._carried = dict(state)
        for bucket in self._buckets:
            self._keeper.discard(bucket)
            self._keeper.prepare(bucket)
            if self._carried:
                self._keeper.load_bucket_state(bucket, self._carried)
