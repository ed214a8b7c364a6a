"""Signs, added up or counted."""

from __future__ import annotations

import pytest
import torch

from ropewalk.errors import ExchangeInvalid, MessageCorrupt
from ropewalk.exchange.compressors import ErrorFeedback, Round, Sign
from tests.exchange.compressors.rounds import heard, layout_of

LAYOUT = layout_of((2, 2), (2,))


def test_signs_are_scaled_by_the_mean_magnitude_of_their_parameter() -> None:
    gradient = torch.tensor([1.0, -2.0, 3.0, -4.0, 10.0, -30.0])
    assert heard(Sign(), LAYOUT, [gradient]).tolist() == [2.5, -2.5, 2.5, -2.5, 20, -20]


def test_a_zero_counts_as_positive_unless_all_are_zero() -> None:
    assert heard(Sign(), LAYOUT, [torch.tensor([0.0, -0.0, 3.0, -1.0, 0.0, 0.0])]).tolist() == [1, 1, 1, -1, 0, 0]


def test_a_vote_takes_the_sign_that_most_sent_and_the_sum_of_magnitudes() -> None:
    gradients = [
        torch.tensor([1.0, -1.0, 1.0, 1.0, 0.0, 0.0]),
        torch.tensor([1.0, -1.0, -1.0, 1.0, 0.0, 0.0]),
        torch.tensor([-7.0, 7.0, 7.0, -7.0, 2.0, -2.0]),
    ]
    assert heard(Sign(vote=True), LAYOUT, gradients).tolist() == [9, -9, 9, 9, 2, -2]
    assert heard(Sign(), LAYOUT, gradients).tolist() == [-5, 5, 7, -5, 2, -2]


def test_a_component_takes_one_bit() -> None:
    layout = layout_of((100, 80), (80,))
    assert Sign().encoder(layout).encode(torch.randn(8080), Round(0)).bits == 8080 + 2 * 32


@pytest.mark.parametrize(("at", "byte"), [(3, 0xBF), (-1, 0x01)], ids=["a negative magnitude", "signs of no component"])
def test_bytes_that_no_encoder_makes_are_refused(at: int, byte: int) -> None:
    message = Sign().encoder(LAYOUT).encode(torch.ones(6), Round(0))
    message.data[at] = byte
    with pytest.raises(MessageCorrupt, match="magnitude of a parameter is negative, or there are signs of no"):
        Sign().decoder(LAYOUT).decode({3: message.data.data}, torch.empty(6))


@pytest.mark.parametrize("length", [8, 10])
def test_messages_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(MessageCorrupt, match=f"rank 3 .* {length} bytes are not the signs of 6 components"):
        Sign().decoder(LAYOUT).decode({3: memoryview(bytes(length))}, torch.empty(6))


def test_a_vote_takes_no_error_feedback() -> None:
    with pytest.raises(ExchangeInvalid, match=r"use Sign\(vote=False\)"):
        ErrorFeedback(Sign(vote=True))
