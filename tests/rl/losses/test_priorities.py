"""Weights and priorities of prioritized replay, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ropewalk.rl.losses.priorities import importance_weights, sequence_priorities, staleness_weights


def test_weights_are_powers_of_inverse_probabilities_over_the_largest() -> None:
    probability = np.array([0.1, 0.4, 0.025])
    found = importance_weights(probability, 10, 0.5)
    expected = [(10 * p) ** -0.5 / (10 * 0.025) ** -0.5 for p in probability]
    assert found.tolist() == pytest.approx(expected)
    assert found.dtype == np.float32
    assert importance_weights(probability, 10, 0.0).tolist() == [1, 1, 1]


def test_stale_items_weigh_less_and_their_mean_is_one() -> None:
    found = staleness_weights(np.array([0, 1, 3]), 1.0)
    assert found.tolist() == pytest.approx([each / (1.75 / 3) for each in (1, 0.5, 0.25)])
    assert found.dtype == np.float32
    assert staleness_weights(np.array([0, 3]), 0.5).tolist() == pytest.approx([4 / 3, 2 / 3])
    assert staleness_weights(np.array([0, 7]), 0.0).tolist() == [1, 1]


def test_priorities_of_sequences_mix_the_largest_and_the_mean_error_of_steps_that_count() -> None:
    errors = torch.tensor([[1.0, 5.0, 9.0], [-3.0, 100.0, 9.0], [2.0, torch.nan, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 0]], dtype=torch.bool)
    found = sequence_priorities(errors, mask, eta=0.75)
    assert found.tolist() == [0.75 * 3 + 0.25 * 2, 5.0, 0.0]
