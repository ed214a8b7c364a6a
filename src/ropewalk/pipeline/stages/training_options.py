"""Options of training besides the plan: one object that every stage process gets."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch

from ropewalk.argument_kinds import check_number
from ropewalk.errors import ScheduleInvalid
from ropewalk.near_names import check_choice
from ropewalk.pipeline.schedules import Schedule, make_schedule

NanPolicy = Literal["pass", "raise", "skip"]
"""pass: gradients are used as they are. raise: GradientNotFinite, and no stage updates. skip: no stage updates."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How updates are computed, for all stages alike.

    Example:
        >>> TrainingOptions(clip_norm=1.0, accumulate=4).nan
        'pass'

    Args:
        clip_norm: gradients are scaled so that the norm of all of them together is at most this, as
            `torch.nn.utils.clip_grad_norm_` does; None for no clipping.
        nan: what happens to an update if any gradient is NaN or infinite: "pass" (a trainer warns at the first loss
            that is not finite), "raise" or "skip".
        accumulate: number of steps in an update, which averages over all their samples, as if their mini-batches were
            one; a drain ends it early. Memory is that of one step.
        autocast: torch.bfloat16 lets forwards and the loss compute in it where that is safe, as `torch.autocast` does;
            weights keep their dtype.

    Raises:
        ValueError: a value is not allowed.
        TypeError: a number is of another type.
    """

    clip_norm: float | None = None
    nan: NanPolicy = "pass"
    autocast: torch.dtype | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        check_number("clip_norm", self.clip_norm, Real, "a number", above=0, finite=True)
        check_number("accumulate", self.accumulate, Integral, "a number of steps", least=1, required=True)
        check_choice("nan", self.nan, get_args(NanPolicy))
        if self.autocast not in (None, torch.bfloat16):
            raise ValueError(
                f"autocast is torch.bfloat16 or None, not {self.autocast!r}: gradients of torch.float16 need a scaled "
                f"loss, and for other types convert the model, model.to(torch.float64)"
            )

    @property
    def wants_norm(self) -> bool:
        """Whether updates must wait for the norm of all gradients."""
        return self.clip_norm is not None or self.nan != "pass"

    def schedule(self, wanted: str | Schedule) -> Schedule:
        """Return the schedule, made such that it waits for the norm and updates when these options need it.

        Raises:
            ScheduleInvalid: there is no such schedule, it cannot do that, or it is an object that was made without it.
        """
        made = make_schedule(wanted)
        needed: dict[str, Any] = {}
        if self.wants_norm:
            needed["norm"] = True
        if self.accumulate > 1:
            needed["accumulate"] = self.accumulate
        if isinstance(wanted, str):
            try:
                return make_schedule(wanted, **needed)
            except ScheduleInvalid as error:
                raise ScheduleInvalid(f"{self._asked(*needed)} cannot be had: {error}") from error
        for name, value in needed.items():
            if getattr(made, name) != value:
                raise ScheduleInvalid(
                    f"{self._asked(name)} needs a schedule with {name}={value}, and {made!r} was made without; make "
                    f"it with that, or give its name"
                )
        return made

    def _asked(self, *needs: str) -> str:
        """Return the options that need these features of a schedule, in words."""
        norm = f"nan={self.nan!r}" if self.clip_norm is None else f"clip_norm={self.clip_norm:g}"
        return " with ".join(norm if need == "norm" else f"accumulate={self.accumulate}" for need in needs)
