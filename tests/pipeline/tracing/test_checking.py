"""What counts as the same number when a graph is held against its model."""

from __future__ import annotations

import pytest
import torch

from ropewalk.pipeline.tracing.checking import _alike


def noisy(tensor: torch.Tensor, error: float) -> torch.Tensor:
    noise = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0), dtype=tensor.dtype) - 0.5
    return tensor + error * tensor.abs().max() * noise


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"),
    [(torch.float32, 1e-5, 1e-2), (torch.float64, 1e-5, 1e-2), (torch.bfloat16, 2**-7, 0.7)],
)
def test_sums_in_another_order_are_the_same_and_other_numbers_are_not(
    dtype: torch.dtype, within: float, beyond: float
) -> None:
    # Elements that large summands leave of each other are as far off as large ones.
    gradient = torch.tensor([3.0, -2.0, 1e-5, 0.0, 1.0] * 20, dtype=dtype)
    assert _alike(gradient, gradient.clone())
    assert _alike(gradient, noisy(gradient, within))
    assert not _alike(gradient, noisy(gradient, beyond))
    assert not _alike(gradient, torch.zeros_like(gradient))


def test_a_small_tensor_is_held_to_its_own_size() -> None:
    small = torch.full((4,), 1e-3)
    assert not _alike(small, 1.1 * small)
    nan = torch.tensor([1.0, float("nan"), float("inf")])
    assert _alike(nan, nan.clone())
    assert not _alike(nan, torch.tensor([1.0, 0.0, float("inf")]))
    assert _alike(torch.empty(0), torch.empty(0)) and not _alike(small, small.double())
    assert not _alike(torch.tensor([1]), torch.tensor([2])) and not _alike(None, small)


def test_a_tensor_with_gradients_is_compared_without_a_warning_of_torch() -> None:
    """The outputs of a compiled module are such; torch warns when one is made a number."""
    output = torch.tensor([1.0, 2.0], requires_grad=True) * 1.0
    assert _alike(output, output + 1e-7) and not _alike(output, output + 1.0)
