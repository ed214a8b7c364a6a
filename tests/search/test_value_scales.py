"""Which hyperparameters get a logarithmic axis."""

from __future__ import annotations

import pytest

from ropewalk.search.value_scales import is_logarithmic


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e-4, 1e-3, 1e-2, 1e-1], True),
        ([0.0, 1e-3, 1.0], False),
        ([-1.0, 1.0, 100.0], False),
        ([1.0, 2.0, 3.0], False),
        ([0.01, 0.4, 0.5, 0.9], False),  # uniform down to almost 0
        ([], False),
    ],
)
def test_powers_are_logarithmic(values: list[float], expected: bool) -> None:
    assert is_logarithmic(values) is expected
