from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from ropewalk.rl.learners.importance_weights import importance_weights
from ropewalk.rl.replay.batch import SampleInfo


def info(probability: list[float], table_size: int) -> SampleInfo:
    num = len(probability)
    zeros = np.zeros(num, np.int64)
    return SampleInfo(zeros, np.array(probability), np.ones(num), zeros, zeros, zeros, table_size, ("0#0",) * num)


@pytest.mark.parametrize("beta", [0.0, 0.4, 0.6, 1.0])
def test_weights_are_those_of_the_paper_with_the_maximum_of_the_batch(beta: float) -> None:
    priorities = np.random.default_rng(0).exponential(size=1_000) ** 3
    probability = priorities**0.6 / (priorities**0.6).sum()
    drawn = np.random.default_rng(1).choice(1_000, 32, p=probability)
    raw = (1_000 * probability[drawn]) ** -beta
    np.testing.assert_allclose(
        importance_weights(info(probability[drawn].tolist(), 1_000), beta), raw / raw.max(), rtol=1e-6
    )


def test_uniform_sampling_weighs_all_items_alike() -> None:
    assert importance_weights(info([0.25] * 3, 4), 1.0).tolist() == [1.0] * 3


def test_tiny_probabilities_give_finite_weights() -> None:
    weights = importance_weights(info([1e-300, 0.5], 10**9), 1.0)
    assert weights.tolist() == pytest.approx([1.0, float(Decimal("2e-300"))])
    assert weights.dtype == np.float32
