"""The sums of a stage's gradients over micro-batches, which autograd adds up in the `.grad` of leaves.

Each version of the weights has leaves of its own, so the sums move to the leaves that the next backward reaches.
Between two backwards of one version they stay where they are.

    backward of version 2    leaves of 2: .grad ◀── + gradient
    backward of version 3    leaves of 2: .grad ──▶ leaves of 3: .grad ◀── + gradient
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn


class SummedGradients:
    """Sums of gradients by the names of parameters.

    Args:
        names: the names of the parameters that are trained.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._leaves: Mapping[str, nn.Parameter] | None = None
        """The leaves that hold the sums; None before the first backward."""

    def move_to(self, leaves: Mapping[str, nn.Parameter]) -> None:
        """Let autograd add to the sums in these leaves from now on."""
        if leaves is self._leaves:
            return
        if self._leaves is not None:
            for name in self._names:
                before = self._leaves[name]
                leaves[name].grad, before.grad = before.grad, None
        self._leaves = leaves

    def take(self, names: Iterable[str]) -> dict[str, Tensor | None]:
        """Return the sums of these parameters and clear them; None for those without a gradient since the last call."""
        if self._leaves is None:
            return dict.fromkeys(names)
        found: dict[str, Tensor | None] = {}
        for name in names:
            leaf = self._leaves[name]
            found[name], leaf.grad = leaf.grad, None
        return found
