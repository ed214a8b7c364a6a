"""Steps up a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ropewalk.population.optimizers import SGD, Adam, Optimizer, make_optimizer
from tests.population.local_loop import is_plain, same_state

KINDS = ["adam", "momentum", "sgd"]


def gradients(number: int, dim: int = 50) -> list[Any]:
    return list(np.random.default_rng(7).standard_normal((number, dim)).astype(np.float32))


def climb(optimizer: Optimizer, number: int) -> Any:
    parameters = np.ones(50, np.float32)
    for gradient in gradients(number):
        parameters = optimizer.step(parameters, gradient)
    return parameters


def test_adam_takes_the_steps_of_its_paper() -> None:
    parameters, mean, squares = np.ones(50), np.zeros(50), np.zeros(50)
    for step, gradient in enumerate(gradients(30), 1):
        mean = 0.9 * mean + 0.1 * gradient
        squares = 0.999 * squares + 0.001 * gradient.astype(np.float64) ** 2
        unbiased, spread = mean / (1 - 0.9**step), squares / (1 - 0.999**step)
        parameters = parameters + 0.05 * unbiased / (np.sqrt(spread) + 1e-8)
    np.testing.assert_allclose(climb(Adam(0.05), 30), parameters, rtol=1e-4, atol=1e-5)


def test_sgd_goes_along_the_gradient_and_with_momentum_along_its_mean() -> None:
    parameters, velocity = np.ones(50), np.zeros(50)
    for gradient in gradients(10):
        velocity = 0.8 * velocity + 0.2 * gradient
        parameters = parameters + 0.1 * velocity
    np.testing.assert_allclose(climb(SGD(0.1, momentum=0.8), 10), parameters, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(climb(SGD(0.1), 10), 1 + 0.1 * np.sum(gradients(10), axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_stay_float32_and_arguments_as_they_are(kind: str) -> None:
    parameters, gradient = np.ones(3, np.float32), np.full(3, 2, np.float32)
    optimizer = make_optimizer(kind, 0.1)
    for _ in range(2):
        assert optimizer.step(parameters, gradient).dtype == np.float32
    assert parameters.tolist() == [1, 1, 1] and gradient.tolist() == [2, 2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_optimizer_goes_on_as_the_saved_one(kind: str) -> None:
    one, other = make_optimizer(kind, 0.1), make_optimizer(kind, 7.0)
    climb(one, 5)
    other.load_state_dict(one.state_dict())
    saved = one.state_dict()
    assert is_plain(saved)
    assert np.array_equal(climb(one, 5), climb(other, 5))
    assert same_state(one.state_dict(), other.state_dict())
    assert same_state(saved, saved) and (kind == "sgd" or not same_state(saved, one.state_dict()))


def test_the_state_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="is of the optimizer SGD, and this one is Adam"):
        Adam(0.1).load_state_dict(SGD(0.1).state_dict())


def test_the_learning_rate_may_change_between_steps() -> None:
    optimizer = SGD(1.0)
    optimizer.learning_rate = 0.25
    assert optimizer.step(np.zeros(1, np.float32), np.ones(1, np.float32)).tolist() == [0.25]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(0), "learning_rate must be above 0, not 0"),
        (lambda: SGD(0.1, momentum=1), "momentum must be from 0 to below 1, not 1"),
        (lambda: Adam(0.1, beta1=1.5), "beta1 must be from 0 to below 1, not 1.5"),
        (lambda: Adam(0.1, beta2=-1), "beta2 must be from 0 to below 1, not -1"),
        (lambda: Adam(0.1, epsilon=0), "epsilon must be above 0, not 0"),
        (lambda: make_optimizer("rmsprop", 0.1), "must be 'adam', 'momentum', 'sgd' or an Optimizer, not 'rmsprop'"),
    ],
)
def test_arguments_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
