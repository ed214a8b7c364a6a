"""Gradient ascent on the launcher: Adam, and SGD with momentum; in float32, with few passes over memory.

Kingma, Ba: Adam, 2014 (https://arxiv.org/abs/1412.6980), in the form at the end of its section 2. All arrays are
float32 and the momentum is an average, v = m·v + (1 - m)·g, as in the code of Salimans et al. 2017
(https://github.com/openai/evolution-strategies-starter, es_distributed/optimizers.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Optimizer(ABC):
    """The base class of optimizers, which turn gradients into steps.

    Args:
        learning_rate: the learning rate; it may be changed between steps.
    """

    def __init__(self, learning_rate: float) -> None:
        if not learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, not {learning_rate}")
        self.learning_rate = learning_rate

    @abstractmethod
    def step(self, parameters: Vector, gradient: Vector) -> Vector:
        """Return new parameters, one step up the gradient; neither argument is changed.

        Args:
            parameters: float32 of shape (dim,).
            gradient: float32 of the same shape.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all mutable state; arrays are copies."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""


class SGD(Optimizer):
    """Steps along the gradient, or along its running mean.

    Args:
        learning_rate: factor of the gradient in each step.
        momentum: weight of the previous mean, from 0 to below 1.
    """

    def __init__(self, learning_rate: float, momentum: float = 0.0) -> None:
        super().__init__(learning_rate)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be from 0 to below 1, not {momentum}")
        self.momentum = momentum
        self._velocity: Vector | None = None

    def step(self, parameters: Vector, gradient: Vector) -> Vector:
        if self.momentum:
            if self._velocity is None:
                self._velocity = np.zeros_like(gradient)
            self._velocity *= np.float32(self.momentum)
            self._velocity += gradient * np.float32(1 - self.momentum)
            gradient = self._velocity
        change = gradient * np.float32(self.learning_rate)
        change += parameters
        return change

    def state_dict(self) -> dict[str, Any]:
        velocity = None if self._velocity is None else self._velocity.copy()
        return {"kind": "SGD", "learning_rate": self.learning_rate, "velocity": velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _check_kind(self, state)
        self.learning_rate = float(state["learning_rate"])
        self._velocity = _loaded(state["velocity"])


class Adam(Optimizer):
    """Steps along the running mean of the gradient, divided by the root of the running mean of its square.

    Args:
        learning_rate: approximate size of a step in each parameter.
        beta1: weight of the previous mean, from 0 to below 1.
        beta2: weight of the previous mean of squares, from 0 to below 1.
        epsilon: added to the root.
    """

    def __init__(self, learning_rate: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        super().__init__(learning_rate)
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be from 0 to below 1, not {value}")
        if not epsilon > 0:
            raise ValueError(f"epsilon must be above 0, not {epsilon}")
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self._steps = 0
        self._mean: Vector | None = None
        self._squares: Vector | None = None

    def step(self, parameters: Vector, gradient: Vector) -> Vector:
        if self._mean is None or self._squares is None:
            self._mean, self._squares = np.zeros_like(gradient), np.zeros_like(gradient)
        self._steps += 1
        rate = self.learning_rate * math.sqrt(1 - self.beta2**self._steps) / (1 - self.beta1**self._steps)
        work = gradient * np.float32(1 - self.beta1)
        self._mean *= np.float32(self.beta1)
        self._mean += work
        np.multiply(gradient, gradient, out=work)
        work *= np.float32(1 - self.beta2)
        self._squares *= np.float32(self.beta2)
        self._squares += work
        np.sqrt(self._squares, out=work)
        work += np.float32(self.epsilon)
        np.divide(self._mean, work, out=work)
        work *= np.float32(rate)
        work += parameters
        return work

    def state_dict(self) -> dict[str, Any]:
        mean = None if self._mean is None else self._mean.copy()
        squares = None if self._squares is None else self._squares.copy()
        return {
            "kind": "Adam",
            "learning_rate": self.learning_rate,
            "steps": self._steps,
            "mean": mean,
            "squares": squares,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _check_kind(self, state)
        self.learning_rate, self._steps = float(state["learning_rate"]), int(state["steps"])
        self._mean, self._squares = _loaded(state["mean"]), _loaded(state["squares"])


def make_optimizer(name: str, learning_rate: float) -> Optimizer:
    """Return the optimizer with this name, with default options.

    Raises:
        ValueError: there is none; the message lists the names.
    """
    if name == "adam":
        return Adam(learning_rate)
    if name == "momentum":
        return SGD(learning_rate, momentum=0.9)
    if name == "sgd":
        return SGD(learning_rate)
    raise ValueError(f"optimizer must be 'adam', 'momentum', 'sgd' or an Optimizer, not {name!r}")


def _check_kind(optimizer: Optimizer, state: dict[str, Any]) -> None:
    if state["kind"] != type(optimizer).__name__:
        raise ValueError(f"this state is of the optimizer {state['kind']}, and this one is {type(optimizer).__name__}")


def _loaded(array: Any) -> Vector | None:
    return None if array is None else np.array(array, np.float32)
