"""`GradientStep`: from a loss to changed weights, with a bound on the gradient's norm, and a rule for NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from ropewalk.errors import NotFinite
from ropewalk.near_names import check_choice
from ropewalk.rl.learners.optimizers import OptimizerFactory
from ropewalk.rl.replay.batch import SampleInfo

NotFiniteRule: TypeAlias = Literal["raise", "skip"]
"""What happens when a loss or a gradient is NaN or infinite: an exception, or no step and a count."""

MAX_SKIPPED = 10
"""This many steps in a row without a finite gradient raise, even under "skip", as in `ropewalk.exchange`."""


class GradientStep:
    """Steps of one optimizer.

    Args:
        parameters: what is trained.
        optimizer: makes the optimizer for them.
        max_norm: gradients whose Euclidean norm over all parameters is larger are scaled down to it; None: no bound.
        not_finite: whether a NaN or infinite gradient raises or is skipped.

    Attributes:
        num_skipped: steps that were skipped because the gradient was not finite.
        average: replaces a vector by its mean over several learners, all of which take the same steps; None: there is
            one learner.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        optimizer: OptimizerFactory,
        *,
        max_norm: float | None = None,
        not_finite: NotFiniteRule = "raise",
    ) -> None:
        check_choice("not_finite", not_finite, get_args(NotFiniteRule))
        self._parameters = list(parameters)
        self._optimizer = optimizer(self._parameters)
        self._max_norm, self._not_finite = max_norm, not_finite
        # Kept here, because the optimizer's own state says what the last step used.
        self._learning_rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._skipped_in_a_row = 0
        self.num_skipped: int = 0
        self.average: Callable[[Tensor], None] | None = None

    def scale_learning_rate(self, factor: float) -> None:
        """Use `factor` times the learning rate that the optimizer was made with, from the next step on."""
        for group, learning_rate in zip(self._optimizer.param_groups, self._learning_rates, strict=True):
            group["lr"] = factor * learning_rate

    def take(self, loss: Tensor, info: SampleInfo) -> float:
        """Change the parameters by one step that lowers `loss`, and return the norm of its gradient before the bound.

        Args:
            loss: a scalar.
            info: the batch that it was computed from, for the message if it is not finite.

        With several learners, loss and gradient are means over all of them before anything is decided by them.

        Raises:
            NotFinite: the loss or its gradient is NaN or infinite, under "raise" or for the tenth time in a row.
        """
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        # One vector: 10 us for a 64x64 actor-critic, where `clip_grad_norm_` takes 75 us.
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        cost = float(loss.detach()) if self.average is None else self._mean_over_learners(loss, flat, gradients)
        norm = float(torch.linalg.vector_norm(flat))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        if not (_is_finite(norm) and _is_finite(cost)):
            self._refuse(cost, norm, info)
            return norm
        if self._max_norm is not None and norm > self._max_norm:
            for gradient in gradients:
                gradient.mul_(self._max_norm / norm)
        self._optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        self._skipped_in_a_row = 0
        return norm

    def _mean_over_learners(self, loss: Tensor, flat: Tensor, gradients: list[Tensor]) -> float:
        """Replace the gradients, and `flat`, by their means over all learners; returns the mean loss."""
        assert self.average is not None
        means = torch.cat([flat, loss.detach().reshape(1).to(flat.dtype)])
        self.average(means)
        flat.copy_(means[:-1])
        start = 0
        for gradient in gradients:
            end = start + gradient.numel()
            gradient.copy_(flat[start:end].view_as(gradient))
            start = end
        return float(means[-1])

    def _refuse(self, loss: float, norm: float, info: SampleInfo) -> None:
        self.num_skipped += 1
        self._skipped_in_a_row += 1
        if self._not_finite == "skip" and self._skipped_in_a_row < MAX_SKIPPED:
            return
        keys, run_ids = tuple(info.keys.tolist()), tuple(info.run_ids)
        in_a_row = f"for the {self._skipped_in_a_row}th time in a row" if self._not_finite == "skip" else ""
        raise NotFinite(
            f"the loss is {loss} and the norm of its gradient {norm} {in_a_row}".rstrip() + "; the batch has the items "
            f"with keys {list(keys)}, made by the actors {sorted(set(run_ids))}. Look for very large rewards, lower "
            "the learning rate or max_grad_norm, or set not_finite='skip' if single batches may be left out",
            column="gradient" if _is_finite(loss) else "loss",
            keys=keys,
            run_ids=run_ids,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer and the counts; its tensors are those in use."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "skipped": self.num_skipped,
            "skipped_in_a_row": self._skipped_in_a_row,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; learning rates stay those that this object was made with."""
        self._optimizer.load_state_dict(state["optimizer"])
        self.num_skipped, self._skipped_in_a_row = state["skipped"], state["skipped_in_a_row"]
        self.scale_learning_rate(1.0)


def _is_finite(number: float) -> bool:
    return abs(number) < float("inf")


__all__ = ["GradientStep", "NotFiniteRule"]
