"""What happens when a gradient is NaN or infinite: one decision of all members together.

    bucket ─▶ look ─▶ fact (0, or which parameter) ─▶ travels ─▶ hear ─▶ settle: the same verdict on every member

One member's NaN reaches everybody through the sum, and would stay in the state of a compressor for ever. So members
tell each other, and either all raise, or all leave the step out, or all go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, GradientNotFinite
from ropewalk.exchange.buckets import Layout

#: raise: GradientNotFinite on every member. skip: nobody takes this step. zero: such components count as 0.
#: pass: the gradients of such parameters are NaN on every member, and it is for the caller to see it.
NanPolicy = Literal["raise", "skip", "zero", "pass"]

Verdict = Literal["go", "skip", "pass"]

#: Who is to blame if all gradients were finite and their sum is not.
NOBODY = -1


def check_policy(policy: str) -> NanPolicy:
    """Check a policy at the door.

    Raises:
        ExchangeInvalid: there is no such policy.
    """
    if policy not in get_args(NanPolicy):
        raise ExchangeInvalid(f"nan={policy!r} is no policy; choose one of {', '.join(get_args(NanPolicy))}")
    return cast(NanPolicy, policy)


def is_finite(flat: Tensor) -> bool:
    """Whether all components are finite; one pass over the memory where they are."""
    if bool(torch.isfinite(flat.sum())):
        return True
    return bool(torch.isfinite(flat).all())  # a sum may overflow although every component is finite


class FiniteCheck:
    """What is known of one step. A fact is 0, or 1 + the position of the first parameter with NaN or infinity.

    Args:
        policy: what to do.
        step: number of the step, for messages.
        scale: what gradients were multiplied by; a GradScaler looks for infinities by itself and expects them, so
            under one "raise" passes them on.
    """

    def __init__(self, policy: NanPolicy, step: int = 0, scale: float = 1.0) -> None:
        self._policy: NanPolicy = "pass" if policy == "raise" and scale != 1.0 else policy
        self._step = step
        self._own: dict[tuple[str, ...], int] = {}
        self._found: set[tuple[int, str]] = set()
        self._repaired: set[str] = set()
        self.ask_who = False

    def look(self, layout: Layout, flat: Tensor) -> int:
        """Look at this member's gradients of a bucket before they travel; "zero" repairs them here.

        Returns:
            The fact to tell the others.
        """
        fact = 0 if is_finite(flat) else 1 + _first_bad(layout, flat)
        if fact and self._policy == "zero":
            self._repaired.add(layout.names[fact - 1])
            torch.nan_to_num_(flat, nan=0.0, posinf=0.0, neginf=0.0)
            fact = 0
        self._own[layout.names] = fact
        return fact

    def hear(self, layout: Layout, facts_by_rank: Sequence[int]) -> None:
        """Take note of what all members found in a bucket."""
        self._found.update((rank, layout.names[fact - 1]) for rank, fact in enumerate(facts_by_rank) if fact)

    def hear_sum(self, layout: Layout, total: Tensor) -> None:
        """Look at the sum over members, the same on each: where it is finite, nobody need be asked."""
        if not is_finite(total):
            self._found.add((NOBODY, layout.names[_first_bad(layout, total)]))
            self.ask_who = True

    def facts(self, layouts: Sequence[Layout]) -> list[int]:
        """What this member found, by bucket: after `hear_sum` has set `ask_who`."""
        return [self._own.get(layout.names, 0) for layout in layouts]

    def hear_all(self, layouts: Sequence[Layout], facts: Sequence[Sequence[int]]) -> None:
        """Take note of what each rank found in each bucket: `facts[rank][bucket]`."""
        for number, layout in enumerate(layouts):
            self.hear(layout, [of_rank[number] for of_rank in facts])

    @property
    def parameters(self) -> tuple[str, ...]:
        """Those that are known to be not finite on some member."""
        return tuple(sorted({name for _, name in self._found}))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members whose gradients they are."""
        return tuple(sorted({rank for rank, _ in self._found if rank != NOBODY}))

    def settle(self) -> Verdict:
        """The verdict, when all buckets were heard; the same on every member.

        Raises:
            GradientNotFinite: something is not finite, and the policy is to raise.
        """
        if not self._found:
            return "go"
        if self._policy == "raise":
            raise GradientNotFinite(
                f"{self.found}. Look at the loss and the learning rate of that step; "
                'nan="skip" leaves such steps out, nan="zero" such components',
                ranks=self.ranks,
                parameters=self.parameters,
                step=self._step,
            )
        # Under "zero" only the sum of finite gradients can have overflowed: no component of it is of use.
        return "pass" if self._policy == "pass" else "skip"

    @property
    def found(self) -> str:
        """What was found, in words; empty if nothing was."""
        if not self._found:
            return ""
        by_rank = {rank: sorted(name for who, name in self._found if who == rank) for rank in self.ranks}
        if not by_rank:
            return f"the sum of finite gradients overflowed in step {self._step} in {_shown(self.parameters)}"
        blamed = "; ".join(f"rank {rank} in {_shown(names)}" for rank, names in by_rank.items())
        return f"NaN or infinity in gradients of step {self._step}: {blamed}"

    @property
    def note(self) -> str:
        """What a report should say of this step; empty where there is nothing to say."""
        if self._repaired:
            return f"step {self._step}: NaN or infinity counted as 0 in {_shown(sorted(self._repaired))}"
        if not self._found:
            return ""
        return f"step {self._step} was {'passed on' if self._policy == 'pass' else 'skipped'}: {self.found}"


def _first_bad(layout: Layout, flat: Tensor) -> int:
    return next(at for at, (_, part) in enumerate(layout.views(flat)) if not bool(torch.isfinite(part).all()))


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
