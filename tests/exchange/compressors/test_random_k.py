"""Random-k: all members draw the same components."""

from __future__ import annotations

import torch

from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors import ErrorFeedback, RandomK, Round
from tests.exchange.compressors.rounds import heard, layout_of, summed

LAYOUT = layout_of((40, 10), (10,))


def test_members_draw_the_same_components_so_that_sums_and_messages_agree() -> None:
    gradients = list(torch.randn(3, LAYOUT.numel))
    compressor = RandomK(0.1)
    messages = heard(compressor, LAYOUT, gradients, step=5)
    sums = summed([compressor.encoder(LAYOUT) for _ in gradients], gradients, step=5)
    assert torch.allclose(messages, sums, rtol=1e-5, atol=1e-5)
    assert 20 <= (sums != 0).sum() <= 60


def test_the_draw_depends_on_seed_and_step_but_not_on_buckets() -> None:
    ones = torch.ones(LAYOUT.numel)
    drawn = heard(RandomK(0.2), LAYOUT, [ones], step=3)
    assert torch.equal(drawn, heard(RandomK(0.2), LAYOUT, [ones], step=3))
    assert not torch.equal(drawn, heard(RandomK(0.2), LAYOUT, [ones], step=4))
    assert not torch.equal(drawn, heard(RandomK(0.2, seed=1), LAYOUT, [ones], step=3))
    alone = heard(RandomK(0.2), Layout(LAYOUT.entries[1:]), [ones[400:]], step=3)
    assert torch.equal(drawn[400:], alone)


def test_the_expected_value_is_the_gradient() -> None:
    gradient = torch.randn(LAYOUT.numel)
    mean = sum(heard(RandomK(0.3), LAYOUT, [gradient], step) for step in range(1500)) / 1500
    assert isinstance(mean, torch.Tensor)
    # The standard deviation of a component's mean is sqrt(0.7 / 0.3 / 1500) = 0.04 of its size.
    assert ((mean - gradient).abs() <= 0.2 * gradient.abs()).all()


def test_small_parameters_have_their_turn_too() -> None:
    layout, ones = layout_of((3,)), torch.ones(3)
    num_drawn = sum(int(heard(RandomK(0.1), layout, [ones], step).count_nonzero()) for step in range(300))
    assert 60 <= num_drawn <= 120


def test_under_error_feedback_components_travel_as_they_are() -> None:
    assert ErrorFeedback(RandomK(0.1)).inner == RandomK(0.1, unbiased=False)
    message = ErrorFeedback(RandomK(0.1)).encoder(LAYOUT).encode(torch.ones(LAYOUT.numel), Round(0))
    assert set(message.data[8:].view("<f4").tolist()) == {1.0}


def test_no_index_travels() -> None:
    message = RandomK(0.1).encoder(LAYOUT).encode(torch.ones(LAYOUT.numel), Round(0))
    assert message.bits == 64 + 32 * message.num_values
