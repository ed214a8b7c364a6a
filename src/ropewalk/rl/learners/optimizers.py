"""Optimizers of torch as settings: values that can be compared, printed and pickled, and called with parameters.

torch wraps methods of its optimizers to lead `torch.compile` past them, and imports torch._dynamo for that at the first
call: 0.9 s of CPU time, which is a third of what a program with a learner took to start. Learners compile nothing, so
the optimizers here have the methods beneath.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer for parameters: `TorchAdam(1e-3)`, or any function, such as `lambda p: torch.optim.SGD(p, 0.1)`.

A function that travels to another process or into a checkpoint has to be defined in a module.
"""


def _beneath(kind: type[torch.optim.Optimizer]) -> dict[str, Any]:
    """Return the methods of an optimizer that torch has wrapped for its compiler, without what they are wrapped in."""
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return {"step": step, **{name: inspect.unwrap(getattr(kind, name)) for name in names}}


_Adam: Any = type("Adam", (torch.optim.Adam,), _beneath(torch.optim.Adam))
_RMSProp: Any = type("RMSprop", (torch.optim.RMSprop,), _beneath(torch.optim.RMSprop))


@dataclass(frozen=True, slots=True)
class TorchAdam:
    """`torch.optim.Adam`, in its fused form.

    Args:
        learning_rate: step size.
        betas: decay of the averages of gradients and of their squares, for each update.
        eps: is added to the root of the averaged square.
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer."""
        # An update of a 64x64 actor-critic takes 57 us fused, and 200 us as torch does it by default on CPUs.
        return _Adam(parameters, self.learning_rate, self.betas, self.eps, fused=True)


@dataclass(frozen=True, slots=True)
class TorchRMSProp:
    """`torch.optim.RMSprop`.

    Args:
        learning_rate: step size.
        alpha: decay of the average of squared gradients, for each update.
        eps: is added to the root of the averaged square, outside of it: 0.1 in IMPALA is inside in TensorFlow.
        momentum: share of the last step that is repeated.
    """

    learning_rate: float
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return _RMSProp(parameters, self.learning_rate, self.alpha, self.eps, momentum=self.momentum)


def uses_compiler(optimizer: OptimizerFactory | None) -> bool:
    """Return whether the first step of an optimizer imports torch's compiler, as those of torch itself do."""
    return not (optimizer is None or isinstance(optimizer, TorchAdam | TorchRMSProp))


__all__ = ["OptimizerFactory", "TorchAdam", "TorchRMSProp", "uses_compiler"]
