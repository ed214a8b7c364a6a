"""The options of GD-SEC, checked in the constructor; `gd_sec.py` describes the method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.compressors.compressor import Compressor, Round
from ropewalk.exchange.gd_sec_guards import DescentMonitor, OnUnstable, chosen_beta, stable_beta
from ropewalk.exchange.wire.values import ValueCodec

Per = Literal["component", "layer", "bucket"]


@dataclass(frozen=True)
class GDSECOptions(Compressor):
    """The options of GD-SEC, which the constructor checks.

    Attributes:
        c: threshold factor: a component is sent if it is more than c times the mean applied gradient of the last round,
            per worker. Larger c sends less. This is the averaged form, for any optimizer.
        beta: rate at which memories follow what was sent; 0 for no memory, None to choose it from c.
        xi: the paper's form, in place of c: for a server that owns the SGD update, in the sum convention. The reference
            of the test is then the last change of the weights.
        alpha: with xi, the step size of that server, so that `beta * xi * alpha` can be checked.
        factors: by parameter name or pattern, the factor of c or xi there: a number, or a tensor in the parameter's
            shape (the paper's xi_i). The first pattern that matches counts.
        per: the unit that is tested, and sent or not: each component, the norm of each layer, or that of the bucket.
        error_correction: whether what is not sent is kept and added in the next round.
        density: in place of c: the fraction of components of D to send, the largest ones (top-j).
        values: how values travel: "same", "bfloat16", "float16", "levels(7)"; the rounding error joins the residual.
        speakers: number of members that send in each round, in turns; None for all.
        silent: what a silent member did: "computes" its gradient, and keeps it in its residual; or "rests", and leaves
            its state unchanged, so that its term in ghat is its memory.
        momentum: mu of the optimizer that takes the steps, for the check of beta: `beta * c <= 2 (1 - mu)`.
        on_unstable: what to do where that does not hold: "warn", "clamp" beta, or "raise".
    """

    c: float = 100.0
    beta: float | None = 0.01
    xi: float | None = None
    alpha: float | None = None
    factors: Mapping[str, float | Tensor] = field(default_factory=dict[str, float | Tensor], hash=False)
    per: Per = "component"
    error_correction: bool = True
    density: float | None = None
    values: str | ValueCodec = "same"
    speakers: int | None = None
    silent: Literal["computes", "rests"] = "computes"
    momentum: float = 0.0
    on_unstable: OnUnstable = "warn"
    keeps_memory: bool = field(init=False, repr=False, default=True)
    stale_safe: bool = field(init=False, repr=False, default=False)
    """In the paper's form the server keeps, for each worker, the theta that the worker has."""

    def __post_init__(self) -> None:
        for name, least in (("c", 0), ("beta", 0), ("xi", 0), ("speakers", 1), ("momentum", 0)):
            value = getattr(self, name)
            # The comparison is also false for NaN.
            if value is not None and not value >= least:
                raise ExchangeInvalid(f"GD-SEC takes a {name} of {least} or more, not {value!r}")
        choices = {"per": ("component", "layer", "bucket"), "silent": ("computes", "rests")}
        choices["on_unstable"] = ("warn", "clamp", "raise")
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ExchangeInvalid(f"GD-SEC takes {name} of {' or '.join(known)}, not {getattr(self, name)!r}")
        if self.density is not None and not 0 < self.density <= 1:
            raise ExchangeInvalid(f"GD-SEC takes a density over 0 and up to 1, not {self.density!r}")
        if self.density is not None and (self.factors or self.per != "component"):
            raise ExchangeInvalid("GD-SEC with a density chooses components by rank; leave out factors and per")
        if self.alpha is not None and self.xi is None:
            raise ExchangeInvalid("GD-SEC takes alpha with xi only; in the averaged form give c, which is xi * alpha")
        if self.beta is None and self.xi is not None and self.alpha is None:
            raise ExchangeInvalid("GD-SEC chooses beta for c = xi * alpha; with xi give alpha too, or a beta")
        if self.momentum >= 1:
            raise ExchangeInvalid(f"GD-SEC takes a momentum below 1, not {self.momentum!r}")
        if self.beta is not None and (c := self._largest_c):
            stable_beta(self.beta, c, self.momentum, self.on_unstable)
        object.__setattr__(self, "keeps_memory", self.memory_rate > 0)
        object.__setattr__(self, "stale_safe", self.xi is not None)

    @property
    def memory_rate(self) -> float:
        """The beta in use: the given one, clamped if `on_unstable` says so, or the one chosen for c."""
        c = self._largest_c or 0.0
        if self.beta is None:
            return chosen_beta(c, self.momentum)
        if c and self.on_unstable == "clamp":
            return stable_beta(self.beta, c, self.momentum, "clamp")
        return self.beta

    @property
    def _largest_c(self) -> float | None:
        """The c that beta is checked against; None where it is unknown."""
        # Without error correction nothing adds up while a component is silent: memories cannot overshoot.
        if not self.error_correction or self.density is not None or (self.xi is not None and self.alpha is None):
            return None
        c = self.c if self.xi is None or self.alpha is None else self.xi * self.alpha
        return c * self._largest_factor

    @property
    def _largest_factor(self) -> float:
        # 1 is the factor of parameters that match no pattern.
        return max(1.0, *(float(torch.as_tensor(factor).max()) for factor in self.factors.values()), 0.0)

    def monitor(
        self, alpha: float, smoothness: float, strong_convexity: float = 0.0, optimum: float = 0.0
    ) -> DescentMonitor:
        """Return a monitor that asserts the proved descent in every round, for training with these options.

        Args:
            alpha: step size in the sum form: `lr / M` where plain SGD with rate lr steps along the mean.
            smoothness: L of f, see `DescentMonitor`.
            strong_convexity: mu of f.
            optimum: the least value of f.

        Returns:
            The monitor.

        Raises:
            ExchangeInvalid: the proof does not hold for these options, or xi or c is too large for it.
        """
        if not self.error_correction or self.values != "same" or self.speakers is not None or self.density is not None:
            raise ExchangeInvalid(
                "descent is proved for error correction, exact values, a threshold, and all members in every round; "
                f"not for {self!r}"
            )
        xi = self.c / alpha if self.xi is None else self.xi
        return DescentMonitor(alpha, smoothness, xi * self._largest_factor, strong_convexity, optimum)

    def speaks(self, round_: Round) -> bool:
        """Whether this member sends in this round."""
        if not round_.participates:
            return False
        return self.speakers is None or (round_.rank - round_.step * self.speakers) % round_.size < self.speakers

    def factor_of(self, name: str) -> float | Tensor:
        """Return the factor of c or xi for this parameter."""
        return next((factor for pattern, factor in self.factors.items() if fnmatchcase(name, pattern)), 1.0)

    def under_error_feedback(self) -> Compressor:
        if self.error_correction or self.keeps_memory:
            raise ExchangeInvalid(
                "GD-SEC keeps by itself what it does not send; use it without ErrorFeedback around it"
            )
        return self
