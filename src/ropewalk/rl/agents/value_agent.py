"""`ValueAgent`: what the agents share that learn the values of discrete actions from replay (DQN, R2D2)."""

from __future__ import annotations

from collections.abc import Mapping

from ropewalk.argument_kinds import check_kind
from ropewalk.rl.agents.replay_agent import ReplayAgent
from ropewalk.rl.environments.spec import ArraySpec
from ropewalk.rl.learners.targets import TargetRule
from ropewalk.rl.learners.value_learner import ValueSettings
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.schedules import LinearSchedule


class ValueAgent(ReplayAgent):
    """An agent with a network of action values, whose items may be sampled by priority; see `DQN` for the settings."""

    anneal_learning_rate: bool
    prioritized: bool
    priority_exponent: float
    beta: LinearSchedule
    target: TargetRule
    learning_starts: int
    samples_per_insert: float

    def check_target(self) -> None:
        """Refuse a number of updates, say, in place of a rule.

        Raises:
            TypeError: `target` is no rule.
        """
        example = "rl.TargetCopy(updates), or rl.Polyak(tau)"
        check_kind(f"rl.{type(self).__name__}: target", self.target, TargetRule, example, required=True)

    def value_settings(self) -> ValueSettings:
        """Return the settings of the learner that all such agents have."""
        return ValueSettings(
            target=self.target,
            beta=self.beta if self.prioritized else None,
            anneal=self.anneal_learning_rate,
            staleness_exponent=self.staleness_exponent,
        )

    def table_of_values(
        self,
        signature: Mapping[str, ArraySpec] | None,
        *,
        groups: int,
        seed: int,
        items_per_round: int | None = None,
    ) -> list[ReplayTable]:
        """Return the one table of the agent; see `ReplayAgent.table_of` for the arguments."""
        return self.table_of(
            signature,
            groups=groups,
            seed=seed,
            samples_per_insert=self.samples_per_insert,
            learning_starts=self.learning_starts,
            items_per_round=items_per_round,
            priority_exponent=self.priority_exponent if self.prioritized else None,
        )


__all__ = ["ValueAgent"]
