"""Losses whose declared kind lets micro-batches of different sizes sum to the whole mini-batch.

With loss_b the value for micro-batch b, n_b its samples and (t_b, c_b) a total with its weight:

    declared    backward from    the update divides by    value of the step
    mean        n_b loss_b       sum n_b                  sum n_b loss_b / sum n_b
    sum         loss_b           nothing                  sum loss_b
    weighted    t_b              sum c_b                  sum t_b / sum c_b

The division comes last, because only then is the sum over a step known (token counts, masks, replicas that each saw a
part of the step). For torch's own losses of classes, n_b counts labels as their mean does (`label_weights`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from ropewalk.near_names import check_choice
from ropewalk.pipeline.stages.label_weights import LabelWeights
from ropewalk.quantities import counted

Declared = Literal["mean", "sum", "weighted"]

_OF_16_BITS = (torch.bfloat16, torch.float16)
_WITHOUT_RANDOMNESS = ("torch.nn.modules.loss", "torch.nn.functional")
"""Modules whose losses draw no random numbers."""


@dataclass(frozen=True, slots=True)
class LossOfPiece:
    """The loss of one micro-batch."""

    value: Tensor
    """The value that `loss_fn` returned (for "weighted" the total); one element."""
    root: Tensor
    """The tensor from which the backward begins; one element."""
    weight: float | None
    """The weight of the micro-batch in the mean; None for a sum."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A function of outputs and labels, with the kind of its value.

    Example:
        >>> Loss(lambda outputs, labels: (outputs - labels).abs().sum(), "sum").declared
        'sum'

    Args:
        function: called with outputs and labels; returns a tensor with one element, or for "weighted" such a total and
            its weight (a number or a tensor with one element).
        declared: "mean" over the samples, "sum" over them, or "weighted". For `nn.CrossEntropyLoss`, `nn.NLLLoss` and
            their functions, "mean" is their own: over the labels that count, with the weights of their classes.

    Raises:
        TypeError: the function is not callable, or is a class.
        ValueError: `declared` is none of these, or contradicts the function's own `reduction`; or the function has
            parameters that require a gradient, and would not be trained.
    """

    function: Callable[[Any, Any], Any]
    declared: Declared = "mean"

    def __post_init__(self) -> None:
        check_choice("declared", self.declared, get_args(Declared))
        function: object = self.function
        if not callable(function):
            raise TypeError(f"loss_fn must be a function of outputs and labels, but it is {function!r}")
        if self.declared == "mean" and isinstance(function, nn.Module) and getattr(function, "reduction", "") == "sum":
            raise ValueError(
                f"{type(function).__name__} has reduction='sum', and the loss is declared as the mean; give "
                f"Loss(loss_fn, 'sum'), or leave out the reduction"
            )
        if isinstance(function, type):
            raise TypeError(f"loss_fn is the class {function.__name__}; give an object of it: {function.__name__}()")
        if isinstance(function, nn.Module):
            _check_untrained(function)

    @classmethod
    def of(cls, given: Callable[[Any, Any], Any] | Loss) -> Loss:
        """Return a loss as it is, and a function as one that returns the mean."""
        return given if isinstance(given, Loss) else cls(given)

    @property
    def may_draw(self) -> bool:
        """Whether it may draw random numbers; those of torch do not."""
        function: Any = self.function
        made_in = type(function) if isinstance(function, nn.Module) else function
        return getattr(made_in, "__module__", "") not in _WITHOUT_RANDOMNESS

    def __call__(self, outputs: Any, labels: Any, num_samples: int) -> LossOfPiece:
        """Return the loss of one micro-batch.

        Args:
            outputs: the model's outputs for the micro-batch.
            labels: its labels.
            num_samples: number of samples in it.

        Raises:
            TypeError: the function did not return what was declared.
        """
        try:
            value = self.function(outputs, labels)
        except Exception as error:
            if labels is None:
                raise TypeError(
                    f"loss_fn raised {type(error).__name__}: {error}. Its labels were None, as the mini-batch came "
                    f"without labels; give both, step(x, y), and not one pair, step((x, y))"
                ) from error
            raise
        if self.declared == "weighted":
            if not (isinstance(value, tuple) and len(value) == 2):  # pyright: ignore[reportUnknownArgumentType]
                raise TypeError(f"a weighted loss returns (total, weight), but this one returned {kind_of(value)}")
            total, weight = cast("tuple[Any, Any]", value)
            _check(total)
            return LossOfPiece(total, total, float(weight))
        _check(value)
        if self.declared == "sum":
            return LossOfPiece(value, value, None)
        of_labels = LabelWeights.of(self.function)
        weight = float(num_samples) if of_labels is None else of_labels.over(labels, num_samples)
        if not weight:  # no label counts: the mean of none is NaN, and would make the whole mini-batch NaN
            value = outputs.mul(0.0).sum()
        return LossOfPiece(value, value * weight, weight)

    def over(self, pieces: list[tuple[Tensor, float | None]]) -> Tensor:
        """Return the loss of a step, one element, from values and weights of its micro-batches in order.

        Values of 16 bits are added up, and returned, in float32: a sum of 16 bits soon grows too large for a further
        value to change it.
        """
        scale = self.declared == "mean"
        values = [value.float() if value.dtype in _OF_16_BITS else value for value, _ in pieces]
        if scale:
            values = [value * (weight or 0.0) for value, (_, weight) in zip(values, pieces, strict=True)]
        total = sum(values[1:], values[0])
        return total if self.declared == "sum" else total / sum(weight or 0.0 for _, weight in pieces)


def _check_untrained(function: nn.Module) -> None:
    wanting = [name for name, parameter in function.named_parameters() if parameter.requires_grad]
    if wanting:
        raise ValueError(
            f"loss_fn is a {type(function).__name__} with {counted(len(wanting), 'parameter')} that would not be "
            f"trained, the first is {wanting[0]!r}: stages train the parameters of the model. Make it a part of the "
            f"model, whose forward then returns what the loss needs; or, if it is to stay as it is, call "
            f"requires_grad_(False) on it"
        )


def _check(value: Any) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError(f"loss_fn must return a tensor with one element, but it returned {kind_of(value)}")


def kind_of(value: Any) -> str:
    """Describe in words what kind of value this is."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
