"""`RoundLearner`: what lock-step learns from a round of blocks, in one fixed order.

It is the whole of an experiment but for the environments: adders, tables, learner, counters. One process calls it with
the blocks that it has collected itself, the learner of a program with those that actors send; the bits are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.rl.adders.adder import Adder
from ropewalk.rl.blocks import Block
from ropewalk.rl.counters import Counters
from ropewalk.rl.learner_updates import LearnerUpdates
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.schedules import progress_after
from ropewalk.rl.variables import Variables


class LimiterStuck(RopewalkError):
    """Neither an insertion nor an update is allowed by a table's limiter, and nothing will change that."""


class RoundLearner:
    """Learns from rounds of blocks: the blocks of all groups, in the order of their groups.

    Args:
        learner: what is trained.
        tables: replay.
        adders: one for each group.
        table: the table that batches come from.
        batch_size: items of a batch.
        total_steps: environment steps of the whole experiment, for `progress`.
        digest_every: updates between digests of the weights; 0 takes none.
    """

    def __init__(
        self,
        learner: Learner,
        tables: ReplayTables,
        adders: Sequence[Adder],
        *,
        table: str,
        batch_size: int,
        total_steps: int,
        digest_every: int = 0,
    ) -> None:
        self.updates: LearnerUpdates = LearnerUpdates(
            learner, lambda keys, priorities: tables.update_priorities(table, keys, priorities), digest_every
        )
        self.learner: Learner = learner
        self.tables: ReplayTables = tables
        self.adders: list[Adder] = list(adders)
        self.counters: Counters = self.updates.counters
        self._table, self._batch_size, self._total_steps = table, batch_size, total_steps
        self._published: dict[int, Variables] = {}

    @property
    def version(self) -> int:
        """Of the weights: the number of rounds that were learned."""
        return self.counters.rounds

    @property
    def progress(self) -> float:
        """Share of the experiment's steps that are done, 0 to 1."""
        return progress_after(self.counters.steps, self._total_steps)

    def variables(self) -> Variables:
        """Return the weights after the last round; the same object until the next one."""
        if self.version not in self._published:
            self._published = {self.version: Variables(self.version, self.progress, self.learner.variables())}
        return self._published[self.version]

    def learn(self, blocks: Sequence[Block]) -> int:
        """Learn from a round.

        Each block is inserted as soon as the limiter allows it, with updates until it does; then come all updates that
        it allows. Schedules stand where they stood when the round began, as they did for its actors: with the progress
        at its end, a learning rate that falls to 0 would leave nothing to learn from the last round.

        Args:
            blocks: one for each group, in their order.

        Returns:
            The number of updates.

        Raises:
            LimiterStuck: the limiter allows neither the next insertion nor an update.
        """
        before, progress = self.counters.updates, self.progress
        for adder, block in zip(self.adders, blocks, strict=True):
            insertion = adder.add(block)
            while not self.tables.can_insert(insertion):
                if not self._update(progress):
                    raise self._stuck(insertion)
            self.tables.insert(insertion)
            self.counters.add(block.steps, block.episodes)
        while self._update(progress):
            pass
        self.counters.rounds += 1
        return self.counters.updates - before

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later rounds depend on."""
        return {
            **self.updates.state_dict(),
            "tables": self.tables.state_dict(),
            "adders": list(self.adders),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.updates.load_state_dict(state)
        self.tables.load_state_dict(state["tables"])
        self.adders = list(state["adders"])
        self._published = {}

    def _update(self, progress: float) -> bool:
        """Learn from one batch, if the limiter allows a whole one."""
        if self.tables.can_sample(self._table, self._batch_size) < self._batch_size:
            return False
        batch = self.tables.sample(self._table, self._batch_size)
        self.updates.update(batch, progress, self.version)
        return True

    def _stuck(self, insertion: Insertion) -> LimiterStuck:
        return LimiterStuck(
            f"lock-step cannot go on: the tables' limiters allow neither the {sum(map(len, insertion.items.values()))} "
            f"items of a block nor a batch of {self._batch_size}. {self.tables.info()}. A block is inserted as a "
            "whole, so give the limiter an error_buffer of at least twice a block's items times the samples per insert"
        )


__all__ = ["LimiterStuck", "RoundLearner"]
