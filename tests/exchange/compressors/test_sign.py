"""Signs, added up or counted."""

from __future__ import annotations

import pytest
import torch

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.compressors import ErrorFeedback, Round, Sign
from tests.exchange.compressors.rounds import heard, layout_of

LAYOUT = layout_of((2, 2), (2,))


def test_signs_are_scaled_by_the_mean_magnitude_of_their_parameter() -> None:
    gradient = torch.tensor([1.0, -2.0, 3.0, -4.0, 10.0, -30.0])
    assert heard(Sign(), LAYOUT, [gradient]).tolist() == [2.5, -2.5, 2.5, -2.5, 20, -20]


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


def test_a_vote_takes_no_error_feedback() -> None:
    with pytest.raises(ExchangeInvalid, match=r"use Sign\(vote=False\)"):
        ErrorFeedback(Sign(vote=True))
