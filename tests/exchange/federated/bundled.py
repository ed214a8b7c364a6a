"""Problems on the data sets that scikit-learn brings along, with the setting in which proofs are held fixed.

Features are scaled (digits to 0..1, the others to variance 1) and get a column of ones; the ridge is 0.01, the step
1 / L, the start zero. Rows are dealt out at random.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.exchange.federated.problems import LogisticRegression, SoftmaxRegression, shard


def data_set(name: str) -> Any:
    """Load the features and the labels of one."""
    from sklearn import datasets  # not where tests are collected: 0.8 s # pyright: ignore[reportMissingTypeStubs]

    return getattr(datasets, f"load_{name}")(return_X_y=True)


def digits() -> tuple[Tensor, Tensor]:
    """(1797, 65) and the digit of each."""
    features, labels = data_set("digits")
    return with_ones(torch.tensor(features, dtype=torch.float64) / 16), torch.tensor(labels)


def digits_parity(num_workers: int = 10, ridge: float = 0.01) -> LogisticRegression:
    """Even digits or odd ones: 65 weights."""
    features, labels = digits()
    return LogisticRegression(shard(features, (1 - 2 * (labels % 2)).double(), num_workers), ridge)


def digits_softmax(num_workers: int = 10, ridge: float = 0.01, unlike: float = 0.0) -> SoftmaxRegression:
    """Which digit: 650 weights."""
    return SoftmaxRegression(shard(*digits(), num_workers, unlike=unlike), ridge, 10)


def breast_cancer(num_workers: int = 5, ridge: float = 0.01) -> LogisticRegression:
    """Benign or malignant: 31 weights."""
    features, labels = data_set("breast_cancer")
    rows = torch.tensor(features, dtype=torch.float64)
    rows = (rows - rows.mean(0)) / rows.std(0, correction=0)
    return LogisticRegression(shard(with_ones(rows), torch.tensor(labels).double() * 2 - 1, num_workers), ridge)


def with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones(len(features), 1, dtype=features.dtype)], 1)
