"""A check that all members exchange the same parameters, done once: otherwise the first step hangs or is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BucketEntry
from ropewalk.exchange.groups.group import Group
from ropewalk.quantities import listed

_SHOWN = 5


def require_same_parameters(group: Group, entries: Sequence[BucketEntry]) -> None:
    """Compare names, shapes and dtypes with those of all members; all members call this.

    Args:
        group: the group whose members are compared.
        entries: this member's parameters.

    Raises:
        ExchangeInvalid: they differ; names the parameters and the ranks. It is raised on every member.
    """
    described = {entry.name: f"{entry.dtype} {entry.shape}".removeprefix("torch.") for entry in entries}
    text = msgspec.json.encode(described)
    fingerprint = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
    said = group.all_gather(memoryview(b""), [fingerprint], "fingerprint of parameters")
    if len({facts for _, facts in said}) == 1:
        return
    said = group.all_gather(memoryview(text), [0], "names of parameters")
    lists = [msgspec.json.decode(message, type=dict[str, str]) for message, _ in said]
    raise ExchangeInvalid(
        f"members do not exchange the same parameters: {'; '.join(_differences(lists))}. Every member must build the "
        "same model, in the same order; a parameter that one member does not use counts as zeros there"
    )


def _differences(lists: Sequence[dict[str, str]]) -> list[str]:
    """Describe in words how each rank differs from rank 0."""
    first = lists[0]
    differences: list[str] = []
    for rank, other in enumerate(lists):
        if lacks := [name for name in first if name not in other]:
            differences.append(f"rank {rank} lacks {listed(lacks, _SHOWN)}, which rank 0 has")
        if more := [name for name in other if name not in first]:
            differences.append(f"rank {rank} has {listed(more, _SHOWN)}, which rank 0 lacks")
        if changed := [name for name in other if other[name] != first.get(name, other[name])]:
            shown = [f"{name} as {other[name]} and not {first[name]}" for name in changed]
            differences.append(f"rank {rank} has {listed(shown, _SHOWN)}")
    return differences or ["their order differs"]
