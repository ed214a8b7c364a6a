"""`VTraceBounds`: how far agents whose actors run ahead of the learner trust what older weights have done."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ropewalk.rl.agents.agent import require
from ropewalk.rl.learners.unrolls import Unrolls
from ropewalk.rl.losses.vtrace import VTraceReturns, vtrace


@dataclass(frozen=True, kw_only=True)
class VTraceBounds:
    """Settings that IMPALA and APPO share.

    Attributes:
        rho_bar: bound of the ratios of probabilities that weigh temporal differences; at least c_bar.
        c_bar: bound of the ratios by which later differences count for earlier values.
        max_policy_lag: blocks whose actions were chosen by weights more than this number of versions old are dropped
            and counted; None: none are.
    """

    rho_bar: float = 1.0
    c_bar: float = 1.0
    max_policy_lag: int | None = None

    def check_bounds(self) -> None:
        """Refuse bounds that cannot be meant."""
        require(self, "c_bar", self.c_bar > 0, "above 0")
        require(self, "rho_bar", self.rho_bar >= self.c_bar, f"at least c_bar={self.c_bar}, or values may not converge")
        require(self, "max_policy_lag", self.max_policy_lag is None or self.max_policy_lag >= 0, "at least 0, or None")

    def corrected(
        self, unrolls: Unrolls, *, log_prob: Tensor, values: Tensor, discount: float, lambda_: float
    ) -> VTraceReturns:
        """Return the advantages and targets of V-trace for blocks that older weights have collected.

        Args:
            unrolls: the blocks, of T steps in B environments.
            log_prob: log-probabilities of the actions under the newest weights, shape (T, B), without gradient.
            values: values of all observations, shape (T + 1, B), without gradient.
            discount: gamma.
            lambda_: see `vtrace`.
        """
        return vtrace(
            log_prob=log_prob,
            behaviour_log_prob=unrolls.log_prob,
            reward=unrolls.reward,
            terminated=unrolls.terminated,
            mask=unrolls.mask,
            values=values,
            discount=discount,
            lambda_=lambda_,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
        )


__all__ = ["VTraceBounds"]
