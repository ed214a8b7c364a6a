"""The samples of a step, and the share that each member computes. Pure, and the same on every member.

batch of the step, global       [ 7 1 9 4 0 3 8 ]
shares, by rank                 [ 7 1 9 | 4 0 | 3 8 ]        sizes differ by 1 at most
rank 1 died, the step again     [ 7 1 9 4 | 0 3 8 ]          redo="recompute": all samples are divided anew
                                [ 7 1 9 + 4 | 3 8 + 0 ]      redo="keep": survivors keep theirs, and get more
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

Shares = Mapping[str, Sequence[Tensor]]
"""By member, the parts of a batch that it computes, one after the other; one-dimensional tensors of indices."""


def share_out(batch: Tensor, members: Sequence[str]) -> dict[str, list[Tensor]]:
    """Divide a batch into one part for each member, in the order of ranks; parts may be empty.

    Args:
        batch: one-dimensional indices.
        members: names by rank.
    """
    return {name: [piece] for name, piece in zip(members, torch.tensor_split(batch, len(members)), strict=True)}


def pass_on(shares: Shares, members: Sequence[str]) -> dict[str, list[Tensor]]:
    """Divide the parts of lost members among `members`, as an additional part for each.

    Args:
        shares: the shares of the previous members, by name.
        members: names of the current members, by rank.
    """
    orphaned = [piece for name, pieces in shares.items() if name not in members for piece in pieces]
    passed = {name: list(shares.get(name, ())) for name in members}
    if orphaned:
        for name, (piece,) in share_out(torch.cat(orphaned), members).items():
            passed[name].append(piece)
    return passed


def batches(
    num_samples: int, batch_size: int, *, epochs: int = 1, seed: int = 0, shuffle: bool = True, drop_last: bool = False
) -> Iterator[Tensor]:
    """Yield the indices of each step's samples, in a different order in each pass over the data.

    Args:
        num_samples: number of samples in the data set.
        batch_size: number of samples per step.
        epochs: number of passes over the data.
        seed: seed of the order.
        shuffle: whether to use another order in each pass; otherwise that of the data set.
        drop_last: omit the last batch of a pass if it is not full.

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
    """Return the number of batches that `batches` yields.

    Args:
        num_samples: number of samples in the data set.
        batch_size: number of samples per step.
        epochs: number of passes over the data.
        drop_last: omit the last batch of a pass if it is not full.
    """
    for name, value in {"num_samples": num_samples, "batch_size": batch_size, "epochs": epochs}.items():
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, not {value}")
    full, rest = divmod(num_samples, batch_size)
    if drop_last and not full:
        raise ValueError(f"no batch of {batch_size} is full with {num_samples} samples; leave out drop_last=True")
    return epochs * (full + (1 if rest and not drop_last else 0))


def seed_of(*facts: int) -> int:
    """Return a seed for torch that differs if any of the facts does."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
