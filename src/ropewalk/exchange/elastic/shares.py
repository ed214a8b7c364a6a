"""Which samples a step has, and which of them each member computes. Pure, and the same on every member.

batch of the step, global       [ 7 1 9 4 0 3 8 ]
shares, by rank                 [ 7 1 9 | 4 0 | 3 8 ]        sizes differ by 1 at most
rank 1 died, the step again     [ 7 1 9 4 | 0 3 8 ]          redo="recompute": all is shared out anew
                                [ 7 1 9 + 4 | 3 8 + 0 ]      redo="keep": who lives keeps what it has, and gets more
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

#: By member, the pieces of a batch that it computes, one after the other.
Shares = Mapping[str, Sequence[Tensor]]


def share_out(batch: Tensor, members: Sequence[str]) -> dict[str, list[Tensor]]:
    """Cut a batch into one piece for each member, in the order of ranks; pieces may be empty."""
    return {name: [piece] for name, piece in zip(members, torch.tensor_split(batch, len(members)), strict=True)}


def pass_on(shares: Shares, members: Sequence[str]) -> dict[str, list[Tensor]]:
    """Give what those had who are no members any more to those who are, as a further piece."""
    orphaned = [piece for name, pieces in shares.items() if name not in members for piece in pieces]
    passed = {name: list(shares.get(name, ())) for name in members}
    if orphaned:
        for name, (piece,) in share_out(torch.cat(orphaned), members).items():
            passed[name].append(piece)
    return passed


def batches(
    num_samples: int, batch_size: int, *, epochs: int = 1, seed: int = 0, shuffle: bool = True, drop_last: bool = False
) -> Iterator[Tensor]:
    """The indices of each step's samples, in another order in each pass over the data.

    Raises:
        ValueError: a number is below 1, or no batch is full and only full ones are wanted.
    """
    num_batches(num_samples, batch_size, epochs=epochs, drop_last=drop_last)
    for epoch in range(epochs):
        if shuffle:
            generator = torch.Generator().manual_seed(seed_of(seed, epoch))
            order = torch.randperm(num_samples, generator=generator)
        else:
            order = torch.arange(num_samples)
        for start in range(0, num_samples, batch_size):
            batch = order[start : start + batch_size]
            if len(batch) == batch_size or not drop_last:
                yield batch


def num_batches(num_samples: int, batch_size: int, *, epochs: int = 1, drop_last: bool = False) -> int:
    """How many steps `batches` gives."""
    for name, value in {"num_samples": num_samples, "batch_size": batch_size, "epochs": epochs}.items():
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")
    full, rest = divmod(num_samples, batch_size)
    if drop_last and not full:
        raise ValueError(f"no batch of {batch_size} is full with {num_samples} samples; leave out drop_last=True")
    return epochs * (full + (1 if rest and not drop_last else 0))


def seed_of(*facts: int) -> int:
    """A seed for torch that differs wherever one of the facts does."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
