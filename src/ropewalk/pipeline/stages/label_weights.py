"""What torch's losses of classes divide their mean by: the labels that count, each with the weight of its class.

    CrossEntropyLoss(weight=w, ignore_index=i)    sum of w[label] over the labels that are not i
    the same without class weights                the number of labels that are not i

So the mean over a mini-batch is not the mean of its micro-batches weighted by their samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss)
_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)


@dataclass(frozen=True, slots=True)
class LabelWeights:
    """How much each label counts in the mean of a loss of classes."""

    of_classes: Tensor | None
    """The weight of each class; None: 1."""
    ignored: int
    """The label that does not count."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> LabelWeights | None:
        """Return those of a loss of torch that is a mean over labels; None for any other function."""
        if type(function) in _MODULES:
            module: Any = function
            return cls(module.weight, module.ignore_index) if module.reduction == "mean" else None
        plain: Any = function
        keywords: dict[str, Any] = {}
        if isinstance(plain, functools.partial) and not plain.args:
            plain, keywords = plain.func, plain.keywords
        if plain not in _FUNCTIONS or not keywords.keys() <= {"weight", "ignore_index", "label_smoothing"}:
            return None
        return cls(keywords.get("weight"), keywords.get("ignore_index", -100))

    def over(self, labels: Any, num_samples: int) -> float:
        """Return the weight of a micro-batch in the mean, in samples: their number, if all labels count 1.

        Args:
            labels: its labels; those that are no class numbers, such as probabilities, all count 1.
            num_samples: the number of its samples, each of which has equally many labels.
        """
        if not isinstance(labels, Tensor) or labels.is_floating_point() or not labels.numel():
            return float(num_samples)
        counted = labels[labels != self.ignored]
        total = float(counted.numel() if self.of_classes is None else self.of_classes[counted].sum())
        return total * num_samples / labels.numel()
