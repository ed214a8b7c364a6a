"""Steps as environments give them, for tests of losses: ends of episodes are followed by masked steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class EnvironmentSteps:
    reward: Tensor
    terminated: Tensor
    mask: Tensor
    values: Tensor
    log_prob: Tensor
    behaviour_log_prob: Tensor

    def episodes(self) -> Iterator[tuple[int, range]]:
        """Environment and steps of each part of an episode; the value after its last step is at the next index."""
        for env in range(self.mask.shape[1]):
            start = 0
            for step in range(len(self.mask) + 1):
                if step == len(self.mask) or not self.mask[step, env]:
                    if step > start:
                        yield env, range(start, step)
                    start = step + 1

    def per_episode(self, function: Callable[[int, range], list[float]], otherwise: Tensor) -> Tensor:
        """`otherwise`, with the steps of every episode replaced by what the function returns for them."""
        out = otherwise.clone()
        for env, steps in self.episodes():
            out[steps.start : steps.stop, env] = torch.tensor(function(env, steps), dtype=out.dtype)
        return out

    def with_garbage(self, number: float) -> EnvironmentSteps:
        """The same, with a number in everything of masked steps but for the values of their observations."""
        return replace(
            self,
            **{
                name: torch.where(self.mask, getattr(self, name), number)
                for name in ("reward", "log_prob", "behaviour_log_prob")
            },
            terminated=self.terminated | ~self.mask,
        )


def random_steps(seed: int, num_steps: int = 12, num_envs: int = 5, end: float = 0.3) -> EnvironmentSteps:
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    ends, terminates = rng.random(shape) < end, rng.random(shape) < 0.5
    mask, terminated = np.ones(shape, bool), np.zeros(shape, bool)
    for env in range(num_envs):
        over = rng.random() < end  # the step before the first one may have ended an episode
        for step in range(num_steps):
            mask[step, env] = not over
            over = not over and bool(ends[step, env])
            terminated[step, env] = over and terminates[step, env]

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    return EnvironmentSteps(
        reward=normal(*shape),
        terminated=torch.from_numpy(terminated),
        mask=torch.from_numpy(mask),
        values=normal(num_steps + 1, num_envs),
        log_prob=normal(*shape),
        behaviour_log_prob=normal(*shape),
    )


def column(*numbers: float) -> Tensor:
    """Numbers of one environment, float64, shape (T, 1)."""
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(-1)


def flags(*numbers: int) -> Tensor:
    """Booleans of one environment, shape (T, 1)."""
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(-1)
