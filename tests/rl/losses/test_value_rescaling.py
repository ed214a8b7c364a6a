"""h and its inverse."""

from __future__ import annotations

import math

import pytest
import torch

from ropewalk.rl.losses.value_rescaling import rescaled, unrescaled

NUMBERS = [0.0, 1e-6, -1e-3, 0.5, -1.0, 3.0, 99.0, -1e4, 1e6]


@pytest.mark.parametrize("eps", [1e-3, 1e-2])
def test_both_are_the_formulas_of_the_paper(eps: float) -> None:
    for x in NUMBERS:
        h = math.copysign(math.sqrt(abs(x) + 1) - 1, x) + eps * x
        root = (math.sqrt(1 + 4 * eps * (abs(x) + 1 + eps)) - 1) / (2 * eps)
        inverse = math.copysign(root**2 - 1, x)
        value = torch.tensor(x, dtype=torch.float64)
        assert float(rescaled(value, eps)) == pytest.approx(h, rel=1e-9, abs=1e-12)
        assert float(unrescaled(value, eps)) == pytest.approx(inverse, rel=1e-9, abs=1e-9)


def test_each_is_the_inverse_of_the_other() -> None:
    numbers = torch.tensor(NUMBERS, dtype=torch.float64)
    torch.testing.assert_close(unrescaled(rescaled(numbers)), numbers, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(rescaled(unrescaled(numbers)), numbers, rtol=1e-9, atol=1e-12)


def test_small_values_keep_their_digits_in_float32() -> None:
    """The formula as it stands subtracts nearly equal numbers, and loses 1e-4 in float32."""
    numbers = torch.linspace(-1, 1, 201)
    torch.testing.assert_close(unrescaled(rescaled(numbers)), numbers, rtol=0, atol=2e-6)


def test_it_is_odd_and_rises() -> None:
    numbers = torch.linspace(-50, 50, 101, dtype=torch.float64)
    assert torch.equal(rescaled(-numbers), -rescaled(numbers))
    assert bool((rescaled(numbers).diff() > 0).all())
