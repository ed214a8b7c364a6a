"""The operations that losses of masked steps are made of: a selection, a mean, and a recursion from the end."""

from __future__ import annotations

import torch
from torch import Tensor


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the values where the mask is True, and 0 elsewhere. None keeps all."""
    return values if mask is None else torch.where(mask, values, 0.0)


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of the values where the mask is True; 0 if it is True nowhere. None counts all."""
    if mask is None:
        return values.mean()
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def summed_backwards(terms: Tensor, factors: Tensor) -> Tensor:
    """Return y with y[t] = terms[t] + factors[t] * y[t + 1] and y[T] = 0; all have shape (T, ...)."""
    total = torch.zeros_like(terms[0])
    totals: list[Tensor] = []
    for term, factor in zip(reversed(terms.unbind(0)), reversed(factors.unbind(0)), strict=True):
        total = torch.addcmul(term, factor, total)
        totals.append(total)
    return torch.stack(totals[::-1])


def step_discounts(terminated: Tensor, discount: float, like: Tensor) -> Tensor:
    """Return `discount` for each step, 0 where the episode was terminated, with the dtype of `like`."""
    return discount * (~terminated.bool()).to(like.dtype)


__all__ = ["masked", "masked_mean", "step_discounts", "summed_backwards"]
