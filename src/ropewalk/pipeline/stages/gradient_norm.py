"""The norm of all gradients of a model, across stages, and the decision that an update takes from it.

    stage 0   |g0| |g2| ──┐
    stage 1   |g1|        ├──▶ every stage: |g| = |(|g0|, |g1|, |g2|)| ──▶ the same verdict: clip, skip, raise
    stage 2   |g3|      ──┘

Stages send one number for each parameter, not one for each stage, and the numbers are put in the order of the model. So
the norm is, to the bit, that of `torch.nn.utils.clip_grad_norm_` in one process, and does not depend on the cut. A
parameter with several copies counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.errors import GradientNotFinite
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.quantities import listed

_EPSILON = 1e-6
"""The same value as in `torch.nn.utils.clip_grad_norm_`."""
_NUM_NAMED = 3


@dataclass(frozen=True, slots=True)
class Norms:
    """The norms of some parameters' gradients."""

    positions: Tensor
    """Positions of the parameters in the model, int64, and the norms; shape (parameters,) each, on the CPU."""
    values: Tensor

    @classmethod
    def of(cls, gradients: Mapping[int, Tensor]) -> Norms:
        """Compute the norms of gradients, given by the positions of their parameters in the model."""
        found = [_norm(_components(gradient)) for gradient in gradients.values()]
        values = torch.stack(found).cpu() if found else torch.empty(0)
        return cls(torch.tensor(list(gradients), dtype=torch.int64), values)

    def __add__(self, other: Norms) -> Norms:
        return Norms(torch.cat([self.positions, other.positions]), _joined(self.values, other.values))

    @property
    def total(self) -> Tensor:
        """The norm of all gradients as one vector; a tensor without dimensions."""
        return _norm(self.values[self.positions.argsort()])

    @property
    def odd(self) -> list[int]:
        """The positions whose norm is NaN or infinite."""
        return sorted(int(position) for position in self.positions[~self.values.isfinite()])


@dataclass(frozen=True, slots=True)
class UpdateVerdict:
    """The decision about one update, the same on all workers."""

    norm: Tensor
    factor: Tensor | None = None
    """The factor by which gradients are multiplied; None leaves them unchanged."""
    skips: bool = False
    """Whether the update is left out, because gradients were not finite."""

    @property
    def clips(self) -> bool:
        """Whether the gradients are scaled down."""
        return self.factor is not None and bool(self.factor < 1.0)


def judge(
    norms: Norms, options: TrainingOptions, names: Sequence[str], version: int | None, step: int
) -> UpdateVerdict:
    """Decide about an update when the norms of all gradients are known.

    Args:
        norms: the norms of all gradients.
        options: the user's options.
        names: the names of all parameters, in the order of the model.
        version: the version that the update would make.
        step: the number in the run of the last step in the update.

    Returns:
        The decision.

    Raises:
        GradientNotFinite: some gradients are NaN or infinite, and the policy is to raise.
    """
    norm = norms.total
    if options.nan != "pass" and not bool(norm.isfinite()):
        if options.nan == "skip":
            return UpdateVerdict(norm, skips=True)
        odd = [names[position] for position in norms.odd]
        shown = listed(odd, _NUM_NAMED)
        raise GradientNotFinite(
            f"gradients are NaN or infinite in step {step}, before the update that makes version {version} of the "
            f"weights: {shown or 'none alone, but all together'}. No worker has updated. Look at the loss and the "
            f'learning rate there; nan="skip" leaves such updates out',
            parameters=tuple(odd),
            step=step,
        )
    if options.clip_norm is None:
        return UpdateVerdict(norm)
    return UpdateVerdict(norm, torch.clamp(options.clip_norm / (norm + _EPSILON), max=1.0))


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _components(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _joined(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate two tensors; an empty one does not influence the dtype."""
    return torch.cat([one for one in (left, right) if one.numel()] or [left])
