"""Handling of NaN and infinite gradients: one decision of all members together.

    bucket ─▶ screen ─▶ names ─▶ sent to all members ─▶ verdict: the same on every member

The sum would carry one member's NaN to every member, and it would stay in the state of a compressor for ever. So
members tell each other what they found, and either all raise, or all skip the step, or all continue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, GradientNotFinite
from ropewalk.exchange.buckets import Layout
from ropewalk.quantities import listed

NanPolicy = Literal["raise", "skip", "zero", "pass"]
"""raise: GradientNotFinite on every member. skip: no member takes this step. zero: such components count as 0. pass:
the gradients are NaN on every member, and the caller has to check them."""


def check_policy(policy: str) -> NanPolicy:
    """Check the name of a policy and return it.

    Args:
        policy: "raise", "skip", "zero" or "pass".

    Raises:
        ExchangeInvalid: there is no such policy.
    """
    if policy not in get_args(NanPolicy):
        raise ExchangeInvalid(f"nan={policy!r} is not a policy; choose one of {', '.join(get_args(NanPolicy))}")
    return cast(NanPolicy, policy)


def is_finite(flat: Tensor) -> bool:
    """Whether all components are finite; one pass over the memory if they are."""
    if bool(torch.isfinite(flat.sum())):
        return True
    return bool(torch.isfinite(flat).all())  # a sum may overflow although every component is finite


def screen(policy: NanPolicy, layout: Layout, flat: Tensor) -> tuple[str, ...]:
    """Check this member's gradients of a bucket before they travel; under "zero" repair them in place.

    Args:
        policy: what to do with components that are not finite.
        layout: the parameters of the bucket.
        flat: the gradients, one-dimensional, as `layout` says.

    Returns:
        The names of parameters whose gradients are, or were, not finite.
    """
    if is_finite(flat):
        return ()
    names = tuple(name for name, part in layout.views(flat) if not bool(torch.isfinite(part).all()))
    if policy == "zero":
        torch.nan_to_num_(flat, nan=0.0, posinf=0.0, neginf=0.0)
    return names


@dataclass(frozen=True, slots=True)
class NonFiniteVerdict:
    """The decision of all members about a step in which some gradient is not finite.

    Attributes:
        note: text for the report.
        goes_on: whether the step is taken, because the gradients were repaired. Otherwise the exchange's own state
            stays as it was before the step, and all gradients become `fill`.
        fill: 0.0, or NaN for callers that check gradients themselves.
    """

    note: str
    goes_on: bool = False
    fill: float = 0.0

    @property
    def skips(self) -> bool:
        """Whether the optimizer skips this step without checking the gradients."""
        return not self.goes_on and self.fill == 0.0


def verdict(
    policy: NanPolicy, step: int, found: Mapping[int, Sequence[str]], *, scaled: bool = False
) -> NonFiniteVerdict | None:
    """Decide about a step from the findings of all members; the result is the same on every member.

    Args:
        policy: what to do.
        step: number of the step, for messages.
        found: for each rank, the names of parameters whose gradients were not finite there.
        scaled: whether a GradScaler inspects the gradients. It lowers its scale when it sees infinities, so it must see
            them: with a scaler, "raise" and "skip" become "pass".

    Returns:
        The decision; None if all gradients are finite.

    Raises:
        GradientNotFinite: some gradient is not finite, and the policy is to raise.
    """
    found = {rank: names for rank, names in sorted(found.items()) if names}
    if not found:
        return None
    blamed = "; ".join(f"rank {rank} in {listed(names, 3)}" for rank, names in found.items())
    if policy == "zero":
        return NonFiniteVerdict(f"step {step}: NaN or infinity counted as 0: {blamed}", goes_on=True)
    if policy == "pass" or scaled:
        return NonFiniteVerdict(f"step {step}: NaN or infinity passed on: {blamed}", fill=math.nan)
    if policy == "skip":
        return NonFiniteVerdict(f"step {step} was skipped: NaN or infinity: {blamed}")
    raise GradientNotFinite(
        f"gradients of step {step} are NaN or infinite: {blamed}. Look at the loss and the learning rate there; "
        'nan="skip" leaves such steps out, nan="zero" such components',
        ranks=tuple(found),
        parameters=tuple(sorted({name for names in found.values() for name in names})),
        step=step,
    )
