"""Minibatches of unrolls: shuffled steps, or shuffled environments for networks with memory, without masked steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ropewalk.pipeline.tracing.trees import map_tensors
from ropewalk.rl.learners.unrolls import Unrolls
from ropewalk.rl.networks.actor_critic import ActorCritic


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Some steps of unrolls.

    Attributes:
        unrolls: which it is a part of.
        index: without memory, positions in the T M steps, time-major; with memory, positions of the M environments.
    """

    unrolls: Unrolls
    index: Tensor

    def of(self, array: Tensor) -> Tensor:
        """Return the part of an array: (S, ...) of (T, M, ...), where S steps count."""
        if not self.unrolls.state:
            return array.flatten(0, 1)[self.index]
        return array[:, self.index][self.unrolls.mask[:, self.index]]

    def evaluate(self, model: ActorCritic) -> tuple[Tensor, Tensor]:
        """Return parameters (S, P) and values (S,); memory begins with the state that the policy had."""
        unrolls = self.unrolls
        if not unrolls.state:
            observation = map_tensors(lambda array: self.of(array[:-1]).unsqueeze(0), unrolls.observation)
            params, values, _ = model.unroll(observation, self.of(unrolls.first[:-1]).unsqueeze(0), {})
            return params[0], values[0]
        observation = map_tensors(lambda array: array[:-1, self.index], unrolls.observation)
        state = {name: array[self.index] for name, array in unrolls.state.items()}
        params, values, _ = model.unroll(observation, unrolls.first[:-1, self.index], state)
        counted = unrolls.mask[:, self.index]
        return params[counted], values[counted]


def minibatches(unrolls: Unrolls, num: int, rng: np.random.Generator) -> Iterator[Minibatch]:
    """Yield the minibatches of one epoch, in which every step that counts is once; sizes differ by at most one.

    Args:
        unrolls: what they are parts of.
        num: how many there are; less if there are not as many steps, or environments for networks with memory.
        rng: shuffles.
    """
    counted = unrolls.mask.any(dim=0) if unrolls.state else unrolls.mask.flatten()
    positions = np.flatnonzero(counted.cpu().numpy())
    for part in np.array_split(rng.permutation(positions), min(num, len(positions))):
        yield Minibatch(unrolls, torch.as_tensor(part, device=unrolls.mask.device))


__all__ = ["Minibatch", "minibatches"]
