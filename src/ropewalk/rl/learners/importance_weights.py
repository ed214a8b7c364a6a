"""Importance weights of prioritized replay (Schaul et al. 2016, section 3.4): they undo the bias of its sampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.replay.batch import SampleInfo


def importance_weights(info: SampleInfo, beta: float) -> NDArray[np.float32]:
    """Return w_i = (N P(i))^-beta / max_j w_j, shape (B,).

    N is the size of the table and P(i) the probability, both at the draw. The maximum is that of the batch, as in Acme
    and SEED RL; the paper takes that of the table, which one item of a very low priority makes arbitrarily large.

    Args:
        info: of the sampled items.
        beta: 0 corrects nothing (all weights are 1), 1 corrects the bias fully.
    """
    # The maximum belongs to the least probability; dividing first keeps every quotient within (0, 1] in float64.
    relative = info.probability / info.probability.min()
    return np.power(relative, -beta).astype(np.float32)


__all__ = ["importance_weights"]
