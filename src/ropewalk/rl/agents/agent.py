"""`Agent`: a method of reinforcement learning, as settings and a recipe of its parts. One file per agent."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeAlias

from ropewalk.rl.adders.adder import Adder
from ropewalk.rl.agents.setting_kinds import check_kinds
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.other_names import refuse_unknown
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.replay.table import ReplayTable

NetworkFactory: TypeAlias = Callable[[EnvironmentSpec], Any]
"""Makes a network from the environment's spec: a `torch.nn.Module`, such as `rl.MLP((64, 64))` makes."""


def require(settings: object, name: str, fulfilled: bool, rule: str) -> None:
    """Raise unless a setting fulfils its rule.

    Args:
        settings: the object that has the setting.
        name: name of the setting.
        fulfilled: whether the setting fulfils the rule.
        rule: the rule, such as "at least 1".

    Raises:
        ValueError: it is not.
    """
    if not fulfilled:
        raise ValueError(f"{type(settings).__name__}: {name}={getattr(settings, name)!r} has to be {rule}")


class Agent(ABC):
    """Settings of a method, and how its parts are made. A frozen dataclass: compared, printed, pickled.

    Attributes:
        synchronous: whether actors wait for the weights of the last update (PPO, A2C), so that it always runs in
            lock-step; otherwise actors run ahead, and lock-step is a choice.
        unroll: T, steps of a block.
        envs: N, environments of a group.
        batch_size: items of a batch; None: one from each group, which is what synchronous agents learn from.
        table: the table that batches are sampled from.
    """

    synchronous: ClassVar[bool] = False
    table: ClassVar[str] = "replay"
    unroll: int
    envs: int
    batch_size: int | None

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Refuse unknown settings, with the names of other libraries in ours, and values of other types."""
        if dataclasses.is_dataclass(cls):
            fields = dataclasses.fields(cls)
            refuse_unknown(f"rl.{cls.__name__}", settings, (field.name for field in fields))
            check_kinds(f"rl.{cls.__name__}", settings, fields)
        return super().__new__(cls)

    def items_of_batch(self, groups: int) -> int:
        """Return the number of items of a batch in a run of this many groups."""
        return groups if self.batch_size is None else self.batch_size

    @abstractmethod
    def make_policy(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, group: int = 0, groups: int = 1
    ) -> Policy:
        """Make the policy of a group of environments; group and groups are for ladders of exploration (R2D2)."""

    @abstractmethod
    def make_learner(
        self, spec: EnvironmentSpec, network: NetworkFactory | None, *, seed: int, device: str = "cpu"
    ) -> Learner:
        """Make the learner, with weights that follow from the seed."""

    @abstractmethod
    def make_tables(self, spec: EnvironmentSpec, *, groups: int, seed: int) -> list[ReplayTable]:
        """Make the tables of replay; in lock-step, their limiters say how many updates follow a round."""

    @abstractmethod
    def make_adder(self, spec: EnvironmentSpec) -> Adder:
        """Make what turns blocks into items."""

    def check(self, spec: EnvironmentSpec) -> None:
        """Raise before anything starts if the agent cannot be used with this environment.

        Raises:
            ValueError: it cannot, as SAC with discrete actions; the message says why, and what to use instead.
        """
        del spec


__all__ = ["Agent", "NetworkFactory", "require"]
