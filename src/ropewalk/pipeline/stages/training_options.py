"""How stages train beside what the plan says: one object that every stage process is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.schedules import Schedule, make_schedule

#: pass: the gradients are used as they are. raise: GradientNotFinite, and nobody updates. skip: nobody updates.
NanPolicy = Literal["pass", "raise", "skip"]

#: What autocast computes in.
_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What a user may ask of all stages alike.

    Args:
        clip_norm: gradients are scaled so that the norm of all of them together is at most this, as
            `torch.nn.utils.clip_grad_norm_` does; None: they are not.
        nan: what happens to an update whose gradients are NaN or infinite anywhere.
        autocast: forwards compute in this type where it is safe, as `torch.autocast` does; weights stay as they are.

    Raises:
        ValueError: a value is none of those allowed.
    """

    clip_norm: float | None = None
    nan: NanPolicy = "pass"
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not (self.clip_norm > 0 and math.isfinite(self.clip_norm)):
            raise ValueError(f"clip_norm is a positive number, or None for no clipping, not {self.clip_norm!r}")
        if self.nan not in get_args(NanPolicy):
            raise ValueError(f"nan is one of {', '.join(get_args(NanPolicy))}, not {self.nan!r}")
        if self.autocast is not None and self.autocast not in _HALF:
            raise ValueError(
                f"autocast is torch.bfloat16, torch.float16 or None, not {self.autocast!r}; for other types convert "
                f"the model: model.to({self.autocast})"
            )

    @property
    def wants_norm(self) -> bool:
        """Whether updates must wait for the norm of all gradients."""
        return self.clip_norm is not None or self.nan != "pass"

    @property
    def _asked(self) -> str:
        return f"nan={self.nan!r}" if self.clip_norm is None else f"clip_norm={self.clip_norm:g}"

    def schedule(self, wanted: str | Schedule) -> Schedule:
        """The schedule with the barrier that these options need, if they need one.

        Raises:
            ScheduleInvalid: there is no such schedule, or it lets stages update at different times; or it is an object
                that was made without `norm=True`.
        """
        if isinstance(wanted, str) and self.wants_norm:
            try:
                return make_schedule(wanted, norm=True)
            except ScheduleInvalid as error:
                raise ScheduleInvalid(f"{self._asked} cannot be had: {error}") from error
        made = make_schedule(wanted)
        if self.wants_norm and not made.norm:
            raise ScheduleInvalid(
                f"{self._asked} waits for the norm of all gradients before each update, and {made!r} was made without "
                f"that; make it with norm=True, or give its name"
            )
        return made
