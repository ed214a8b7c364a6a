"""Weights of sampled items, and priorities of prioritized replay.

Schaul et al.: Prioritized Experience Replay, 2016 (https://arxiv.org/abs/1511.05952), section 3.4; priorities of
sequences as in Kapturowski et al.: Recurrent Experience Replay in Distributed Reinforcement Learning (R2D2), 2019,
section 2.3.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def importance_weights(probability: NDArray[np.float64], table_size: int, beta: float) -> NDArray[np.float32]:
    """Return (N P)^-beta, divided by the largest of the batch.

    Args:
        probability: probability of drawing each item of the batch, shape (B,).
        table_size: N, number of items in the table.
        beta: 0 corrects nothing, 1 all.
    """
    weights = (table_size * probability) ** -beta
    return (weights / weights.max()).astype(np.float32)


def staleness_weights(lags: NDArray[np.int64], exponent: float) -> NDArray[np.float32]:
    """Return (1 + lag)^-exponent, divided by the mean of the batch: old experience counts less.

    In the mean over batches a gradient with these weights is the one of items drawn with probability proportional to
    (1 + lag)^-exponent, as TorchRL's `StalenessAwareSampler` draws them with the exponent 1.

    Args:
        lags: by how many versions the weights that chose the actions are behind, shape (B,).
        exponent: 0: all items weigh 1.
    """
    weights = (1.0 + lags) ** -exponent
    return (weights / weights.mean()).astype(np.float32)


@torch.no_grad()
def sequence_priorities(td_errors: Tensor, mask: Tensor, eta: float = 0.9) -> Tensor:
    """Return eta max |td| + (1 - eta) mean |td| of each sequence, shape (B,); 0 where no step counts.

    Args:
        td_errors: shape (T, B).
        mask: bool, shape (T, B).
        eta: share of the largest error.
    """
    sizes = torch.where(mask, td_errors.abs(), 0.0)
    return eta * sizes.amax(0) + (1 - eta) * sizes.sum(0) / mask.sum(0).clamp(min=1)


__all__ = ["importance_weights", "sequence_priorities", "staleness_weights"]
