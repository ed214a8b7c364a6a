"""Guards of GD-SEC: a stability rule for `beta * c`, and a check of the proved descent in each round.

There are two different bounds. The rule `beta * c <= 2` limits useful settings (c = 10 to 100): a component that was
silent for T rounds sends `T (g - h)`, and the memory overshoots once `beta T > 2`, while T grows with c. The proof
holds in a smaller region, `c <= sqrt(1 - alpha L) / 2`; there `DescentMonitor` asserts its inequality while debugging.

Y. Chen, R. S. Blum, M. Takac, B. M. Sadler, "Distributed Learning With Sparsified Gradient Differences", IEEE JSTSP
2022, https://arxiv.org/abs/2202.02491. The constants of the proof here are our own, by the descent lemma;
the paper's may differ (docs/theory.md, "Stability and descent of GD-SEC").
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ropewalk.errors import DescentViolated, ExchangeInvalid

OnUnstable = Literal["warn", "clamp", "raise"]

FASTEST_BETA = 0.03
"""The largest beta that is chosen by default, however small c is."""


def stable_limit(momentum: float = 0.0) -> float:
    """Return the largest `beta * c` that is stable: 2 for plain steps, `2 (1 - mu)` under momentum mu.

    Args:
        momentum: mu of the optimizer, from 0 to below 1.
    """
    return 2.0 * (1.0 - momentum)


def chosen_beta(c: float, momentum: float = 0.0) -> float:
    """Return a beta for this c that is well inside of the stable region: `min(0.03, 1.5 / c)` for plain steps.

    Args:
        c: threshold factor of GD-SEC.
        momentum: mu of the optimizer, from 0 to below 1.
    """
    return min(FASTEST_BETA, 0.75 * stable_limit(momentum) / c) if c > 0 else FASTEST_BETA


def stable_beta(beta: float, c: float, momentum: float = 0.0, on_unstable: OnUnstable = "warn") -> float:
    """Return `beta`, or the largest stable one in its place where `on_unstable` is "clamp".

    Args:
        beta: rate of the memory.
        c: threshold factor of GD-SEC.
        momentum: mu of the optimizer, from 0 to below 1.
        on_unstable: what to do if `beta` is not stable: "warn", "clamp" or "raise".

    Raises:
        ExchangeInvalid: `beta` is not stable, and `on_unstable` is "raise".
    """
    limit = stable_limit(momentum)
    # Half a percent of tolerance: 0.02 * 100 must count as 2 in spite of rounding.
    if beta * c <= 1.005 * limit:
        return beta
    if on_unstable == "clamp":
        return limit / c
    under = f" under momentum {momentum:g}" if momentum else ""
    message = (
        f"GD-SEC with beta {beta:g} and c {c:g} has beta * c = {beta * c:.4g}, and over {limit:.4g}{under} its "
        f"memories overshoot and training diverges; use beta <= {limit / c:.4g}, or beta=None to have it chosen"
    )
    if on_unstable == "raise":
        raise ExchangeInvalid(message)
    warnings.warn(message, stacklevel=4)
    return beta


def provable_xi(alpha: float, smoothness: float, strong_convexity: float = 0.0) -> float:
    """Return the largest xi for which descent is proved; times alpha it is the largest c.

    Args:
        alpha: step size of `theta <- theta - alpha * ghat`, where ghat is a sum over members.
        smoothness: L, of the sum f of all members' functions.
        strong_convexity: mu of f, by strong convexity or the Polyak-Lojasiewicz inequality; 0 proves the nonconvex
            and the convex rate, more than that the linear one: `V <- (1 - alpha mu) V`.

    Raises:
        ExchangeInvalid: `alpha * L` is not below 1, or mu is more than L.
    """
    if not 0 < alpha * smoothness < 1:
        raise ExchangeInvalid(
            f"descent is proved for steps alpha < 1 / L only; alpha is {alpha:.4g} and 1 / L is {1 / smoothness:.4g}"
        )
    if not 0 <= strong_convexity <= smoothness:
        raise ExchangeInvalid(f"strong convexity {strong_convexity:.4g} is not between 0 and L = {smoothness:.4g}")
    room = 1 - alpha * smoothness
    if not strong_convexity:
        return math.sqrt(room) / (2 * alpha)
    q = 1 - alpha * strong_convexity
    return math.sqrt(room / (2 * (1 / q + 1 / q**2))) / alpha


@dataclass
class DescentMonitor:
    """Asserts the inequality of the proof in every round; for debugging, since it needs f and its gradient.

    With `d^k = theta^k - theta^{k-1}` and `V^k = f^k - f* + b1 |d^k|^2 + b2 |d^{k-1}|^2` it is

        nonconvex, convex   V^{k+1} <= V^k - (alpha / 2) |grad f^k|^2    b2 = alpha xi^2, b1 = 2 b2
        strongly convex     V^{k+1} <= (1 - alpha mu) V^k                b2 = alpha xi^2 / q, b1 = b2 + b2 / q

    It holds for error correction with exact values while every member takes part, whatever beta is.

    Attributes:
        alpha: step size, for the sum form: `lr / M` where an optimizer with rate lr steps along the mean.
        smoothness: L of f, the sum over members.
        xi: largest component of the compressor's xi; c / alpha in the averaged form.
        strong_convexity: mu of f; with it `optimum` is needed too.
        optimum: f*, the least value of f.
    """

    alpha: float
    smoothness: float
    xi: float
    strong_convexity: float = 0.0
    optimum: float = 0.0
    num_rounds: int = field(default=0, init=False)
    _potential: float | None = field(default=None, init=False, repr=False)
    _allowed: float = field(default=math.inf, init=False, repr=False)
    _theta: Tensor | None = field(default=None, init=False, repr=False)
    _squared_step: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        largest = provable_xi(self.alpha, self.smoothness, self.strong_convexity)
        if self.xi > largest:
            raise ExchangeInvalid(
                f"descent is proved up to c = xi * alpha = {largest * self.alpha:.4g} with these constants, not for "
                f"{self.xi * self.alpha:.4g}; larger c is useful but outside of the proof, so train without the monitor"
            )

    @property
    def potential(self) -> float | None:
        """V of the last round; None before the first."""
        return self._potential

    def check(self, theta: Tensor, value: float, gradient: Callable[[], Tensor] | Tensor) -> float:
        """Check the weights at the start of a round, before any update of it is applied.

        Args:
            theta: weights, flat; copied.
            value: f at theta, the sum over all members.
            gradient: gradient of f at theta, flat, the sum over all members; or a function that computes it.

        Returns:
            V of this round.

        Raises:
            DescentViolated: V is larger than the proof allows; names the round and both numbers.
        """
        b1, b2 = self._weights()
        squared_step = 0.0 if self._theta is None else _squared(theta - self._theta)
        potential = value - self.optimum + b1 * squared_step + b2 * self._squared_step
        # Tolerance for rounding: f is a sum of many terms of its own magnitude.
        slack = 64 * torch.finfo(theta.dtype).eps * max(abs(value), abs(self.optimum), abs(potential))
        # The comparison is also false for NaN.
        if not potential <= self._allowed + slack:
            raise DescentViolated(
                f"round {self.num_rounds}: V is {potential:.10g}, and after {self._potential:.10g} in the round before "
                f"the proof allows {self._allowed:.10g} at most; the smoothness ({self.smoothness:.4g}) or another "
                f"constant is wrong, a member was missing, or what was applied is not what the members sent",
                round=self.num_rounds,
                potential=potential,
                allowed=self._allowed,
            )
        if self.strong_convexity:
            self._allowed = (1 - self.alpha * self.strong_convexity) * potential
        else:
            found = gradient if isinstance(gradient, Tensor) else gradient()
            self._allowed = potential - self.alpha / 2 * _squared(found)
        self._potential, self._squared_step, self._theta = potential, squared_step, theta.clone()
        self.num_rounds += 1
        return potential

    def _weights(self) -> tuple[float, float]:
        """Return b1 and b2."""
        q = 1 - self.alpha * self.strong_convexity
        b2 = self.alpha * self.xi**2 / q
        return b2 + b2 / q, b2


def _squared(vector: Tensor) -> float:
    return float(torch.dot(vector.reshape(-1), vector.reshape(-1)))
