"""Top-k: exactly the largest components, however they are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.exchange.compressors import ErrorFeedback, Round, TopK
from ropewalk.exchange.compressors.top_k import largest
from tests.exchange.compressors.rounds import heard, layout_of


@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, -3.0, 1e-30, float("inf"), float("nan")]), min_size=1), st.data())
@settings(max_examples=60, deadline=None)
def test_the_largest_are_found_and_of_equal_ones_the_first(values: list[float], data: st.DataObject) -> None:
    num = data.draw(st.integers(1, len(values)))
    sizes = [float("inf") if value != value else abs(value) for value in values]
    order = sorted(range(len(values)), key=lambda at: (-sizes[at], at))
    expected = sorted(at for at in order[:num] if sizes[at])
    found = largest(torch.tensor(values), num)
    assert found.indices.tolist() == expected
    assert np.array_equal(found.values, np.array(values, np.float32)[expected], equal_nan=True)


@pytest.mark.parametrize("kind", ["normal", "few are large", "large where the sample looks", "equal"])
@pytest.mark.parametrize("num", [3, 3000])
def test_a_sample_never_changes_what_is_found(kind: str, num: int) -> None:
    chance = torch.Generator().manual_seed(0)
    vector = torch.randn(300_000, generator=chance)
    if kind == "few are large":
        vector[torch.randperm(300_000, generator=chance)[:299_000]] = 0
    elif kind == "large where the sample looks":
        vector[:: 300_000 // (1 << 16)] *= 1000
    elif kind == "equal":
        vector = vector.sign()
    expected = torch.sort(vector.abs(), descending=True, stable=True).indices[:num].sort().values
    found = largest(vector, num)
    assert found.indices.tolist() == [at for at in expected.tolist() if vector[at]]


def test_density_says_how_many_travel() -> None:
    layout = layout_of((1000,))
    gradient = torch.randn(1000)
    assert TopK(0.02).encoder(layout).encode(gradient, Round(0)).num_values == 20
    assert TopK(1e-9).encoder(layout).encode(gradient, Round(0)).num_values == 1
    assert torch.equal(heard(TopK(1.0), layout, [gradient]), gradient)


def test_values_may_be_rounded_and_error_feedback_keeps_the_rest() -> None:
    layout, gradient = layout_of((1000,)), torch.randn(1000)
    plain, rounded = (TopK(0.1, values).encoder(layout).encode(gradient, Round(0)) for values in ("same", "bfloat16"))
    assert rounded.bits == plain.bits - 16 * 100
    encoder = ErrorFeedback(TopK(0.1, "bfloat16")).encoder(layout)
    message = encoder.encode(gradient, Round(0))
    out = torch.empty(1000)
    TopK(0.1).decoder(layout).decode({0: message.data.data}, out)
    encoder.commit()
    assert encoder.error is not None
    assert torch.equal(out + encoder.error, gradient)
    assert (encoder.error != 0).sum() > 900
