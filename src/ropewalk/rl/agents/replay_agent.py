"""`ReplayAgent`: what agents that learn from replay share (DQN, R2D2, SAC, TD3, BC).

Their table keeps the newest items, and its limiter says how often each of them is learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from ropewalk.rl.agents.agent import Agent, require
from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec
from ropewalk.rl.learners.gradient_step import GradientStep, NotFiniteRule
from ropewalk.rl.learners.optimizers import OptimizerFactory
from ropewalk.rl.replay.limiters import RateLimiter
from ropewalk.rl.replay.selectors import Fifo, Prioritized, Uniform
from ropewalk.rl.replay.table import ReplayTable


class ReplayAgent(Agent):
    """An agent whose batches are sampled from replay.

    Attributes:
        items: what replay holds, for errors.
        optimizer: makes the optimizer.
        max_grad_norm: gradients of a larger norm are scaled down to it; None: no bound.
        not_finite: whether an update with a NaN or infinite loss or gradient raises, or is skipped and counted.
        replay_size: number of items that replay holds; the oldest leave.
        staleness_exponent: see `staleness_weights`.
    """

    items: ClassVar[str] = "transitions"
    optimizer: OptimizerFactory
    max_grad_norm: float | None
    not_finite: NotFiniteRule
    replay_size: int
    staleness_exponent: float = 0.0

    def check_replay(self, learning_starts: int, items_of_block: int) -> None:
        """Raise unless batches have a size of their own, and enough items fit.

        Args:
            learning_starts: number of items with which updates begin.
            items_of_block: items that one block brings, at most.

        Raises:
            ValueError: they do not.
        """
        require(self, "batch_size", (self.batch_size or 0) >= 1, f"a number of {self.items}, such as 64")
        rule = "at least 0: 1 lets items count less the older they are, 0 does not"
        require(self, "staleness_exponent", self.staleness_exponent >= 0, rule)
        rule = f"from 1 to replay_size={self.replay_size} {self.items}, or updates would never begin"
        require(self, "learning_starts", 1 <= learning_starts <= self.replay_size, rule)
        rule = f"at least {items_of_block}, the {self.items} of one block, which is inserted as a whole"
        require(self, "replay_size", self.replay_size >= items_of_block, f"{rule}; or give a smaller unroll or envs")

    def gradient_step(self, module: nn.Module, optimizer: OptimizerFactory | None = None) -> GradientStep:
        """Make the steps of a module's weights; the optimizer is the agent's, unless another one is given."""
        return GradientStep(
            module.parameters(), optimizer or self.optimizer, max_norm=self.max_grad_norm, not_finite=self.not_finite
        )

    def table_of(
        self,
        signature: Mapping[str, ArraySpec] | None,
        *,
        groups: int,
        seed: int,
        samples_per_insert: float,
        learning_starts: int,
        items_per_round: int | None = None,
        priority_exponent: float | None = None,
    ) -> list[ReplayTable]:
        """Return the one table of the agent.

        Args:
            signature: signature of the items; None: it is not checked.
            groups: number of groups of environments.
            seed: seed of all draws.
            samples_per_insert: about how often each item is sampled; see `ratio_limiter`.
            learning_starts: items before the first sample.
            items_per_round: items that all groups insert with one block each, at most; None: one for each step.
            priority_exponent: exponent of prioritized sampling; None: items are sampled uniformly.
        """
        limiter = ratio_limiter(
            samples_per_insert,
            min_size=learning_starts,
            batch_size=self.items_of_batch(groups),
            items_per_round=items_per_round or self.unroll * self.envs * groups,
        )
        table = ReplayTable(
            self.table,
            sampler=Uniform() if priority_exponent is None else Prioritized(priority_exponent),
            remover=Fifo(),
            max_size=self.replay_size,
            limiter=limiter,
            signature=signature,
            seed=seed,
        )
        return [table]


def ratio_limiter(samples_per_insert: float, *, min_size: int, batch_size: int, items_per_round: int) -> RateLimiter:
    """Return the limiter of a table that is sampled `samples_per_insert` times for each item, in whole batches.

    The numbers of samples owed that it allows lie one round's samples and one batch below and above
    samples_per_insert * min_size. In lock-step less than a batch is owed above the lower bound after the updates of a
    round, so that the next round always fits in. Asynchronous actors may be one round ahead of the learner, or one
    behind it.

    Args:
        samples_per_insert: samples for each item.
        min_size: items before the first sample.
        batch_size: items of a batch.
        items_per_round: items that all groups insert with one block each, at most.
    """
    middle = samples_per_insert * min_size
    room = samples_per_insert * items_per_round + batch_size
    return RateLimiter(samples_per_insert, min_size, middle - room, middle + room)


def transition_signature(spec: EnvironmentSpec) -> dict[str, ArraySpec]:
    """Return shape and dtype of each column of a transition."""
    return {
        **spec.observation_columns,
        **{f"next_{name}": array for name, array in spec.observation_columns.items()},
        "action": spec.action_array,
        "reward": ArraySpec(()),
        "discount": ArraySpec(()),
    }


__all__ = ["ReplayAgent", "ratio_limiter", "transition_signature"]
