"""Half: rounding to 16 bits."""

from __future__ import annotations

import pytest
import torch

from ropewalk.exchange.compressors import Half, Round
from tests.exchange.compressors.rounds import heard, layout_of, summed


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_components_are_rounded_as_torch_rounds(dtype: str) -> None:
    compressor = Half(dtype)  # pyright: ignore[reportArgumentType] - one of the two
    gradient = torch.randn(1000)
    expected = gradient.to(getattr(torch, dtype)).float()
    assert torch.equal(heard(compressor, layout_of((1000,)), [gradient]), expected)
    assert torch.equal(summed([compressor.encoder(layout_of((1000,)))], [gradient]), expected)


def test_receivers_add_in_float32_what_an_all_reduce_adds_in_16_bits() -> None:
    gradients = [torch.tensor([256.0]), torch.tensor([1.0]), torch.tensor([1.0])]
    assert heard(Half(), layout_of((1,)), gradients).item() == 258
    assert summed([Half().encoder(layout_of((1,))) for _ in gradients], gradients).item() in (256, 258)


def test_it_takes_two_bytes_a_component() -> None:
    message = Half().encoder(layout_of((100, 100))).encode(torch.randn(10_000), Round(0))
    assert 8 * 20_000 <= message.bits <= 8 * 20_008
