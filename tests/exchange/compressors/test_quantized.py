"""QSGD: unbiased rounding to a few levels."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors import Compressor, ErrorFeedback, Quantized, Round, TopK
from tests.exchange.compressors.rounds import heard, layout_of

LAYOUT = layout_of((256,))


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_the_expected_value_is_the_gradient_and_the_variance_is_bounded(norm: Literal["max", "l2"]) -> None:
    gradient = torch.randn(256)
    draws = torch.stack([heard(Quantized(4, 0, norm), LAYOUT, [gradient], step) for step in range(400)])
    assert (draws.mean(0) - gradient).abs().max() < 5 * draws.std(0).max() / 20
    # Lemma 3.1 of the paper: E |Q(v) - v|^2 <= min(n / s^2, sqrt(n) / s) |v|^2.
    variance = (draws - gradient).square().sum(1).mean()
    assert 0 < variance <= min(256 / 16, 16 / 4) * gradient.square().sum()


def test_members_and_steps_round_independently_and_repeatably() -> None:
    def said(step: int, rank: int) -> bytes:
        return Quantized().encoder(LAYOUT).encode(torch.linspace(-1, 1, 256), Round(step, rank)).data.tobytes()

    assert said(1, 0) == said(1, 0)
    assert len({said(1, 0), said(2, 0), said(1, 1), said(2, 1)}) == 4


@pytest.mark.parametrize("compressor", [Quantized(), TopK(1.0, "levels(7)")])
def test_buckets_round_independently(compressor: Compressor) -> None:
    """They all rounded alike: the errors of equal layers added up instead of cancelling, to N^2 in place of N times
    the variance over N buckets."""
    gradient, num = torch.randn(256), 64
    layouts = [Layout((BucketEntry(f"layer{number}", (256,), torch.float32, "cpu"),)) for number in range(num)]
    errors = torch.stack([heard(compressor, layout, [gradient]) for layout in layouts]) - gradient
    variance = errors.sum(0).square().mean() / errors.square().mean()
    assert 0.5 * num < variance < 2 * num


def test_a_component_takes_the_bits_of_its_levels_and_a_sign() -> None:
    layout = layout_of((512 * 20,))
    message = Quantized(levels=7).encoder(layout).encode(torch.randn(512 * 20), Round(0))
    assert 0 <= message.bits - (512 * 20 * 4 + 20 * 32) <= 8 * 16


def test_under_error_feedback_it_rounds_to_the_nearest_level() -> None:
    compressor = ErrorFeedback(Quantized(levels=1))
    assert compressor.inner == Quantized(levels=1, stochastic=False)
    assert heard(compressor, layout_of((4,)), [torch.tensor([1.0, 0.4, -0.6, 0.0])]).tolist() == [1, 0, -1, 0]
