"""Environments and agents for tests of faults: they wait for files, return NaN, and count their steps in a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl.adders.adder import Adder
from ropewalk.rl.adders.stream_adder import Added
from ropewalk.rl.adders.unroll import UnrollAdder
from ropewalk.rl.agents.impala import IMPALALearner
from ropewalk.rl.blocks import Block
from ropewalk.rl.learners.unrolls import Unrolls
from ropewalk.rl.replay.batch import SampleInfo
from ropewalk.rl.replay.table import ReplayTable


@dataclass(frozen=True, kw_only=True)
class PausedIMPALA(rl.IMPALA):
    """IMPALA whose learner stands still in an update while a file is there."""

    gate: str = ""

    def _learner(self, model: Any, distribution: Any, seed: int) -> PausedLearner:
        del seed
        return PausedLearner(model, distribution, self)


class PausedLearner(IMPALALearner):
    def learn(self, unrolls: Unrolls, info: SampleInfo) -> dict[str, float]:
        while os.path.exists(self._agent.gate) and not rw.stopping():  # type: ignore[attr-defined]
            time.sleep(0.005)
        return super().learn(unrolls, info)


class StuckIMPALA(rl.IMPALA):
    """IMPALA whose blocks also go into a queue for one, from which nobody takes them."""

    def make_tables(self, spec: Any, *, groups: int, seed: int) -> list[ReplayTable]:
        return [*super().make_tables(spec, groups=groups, seed=seed), ReplayTable.queue("forgotten", 1)]

    def make_adder(self, spec: Any) -> Adder:
        del spec
        return TwiceAdder()


class TwiceAdder(UnrollAdder):
    def _add(self, block: Block) -> Added:
        added = super()._add(block)
        (items,) = added.items.values()
        return Added(added.rows, {"replay": items, "forgotten": items})


class Changed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Calls a function before each step, which may change the reward."""

    def __init__(self, environment: Any, before: Callable[[], float | None]) -> None:
        super().__init__(environment)
        self._before = before

    def step(self, action: Any) -> Any:
        reward = self._before()
        observation, own, *rest = self.env.step(action)
        return observation, own if reward is None else reward, *rest


def cartpole(before: Callable[[], float | None]) -> Changed:
    return Changed(gymnasium.make("CartPole-v1"), before)


@dataclass(frozen=True)
class Rewards:
    """CartPole whose steps of these numbers, counted over episodes, give another reward."""

    value: float
    steps: tuple[int, ...] | None = None

    def __call__(self, seed: int) -> Any:
        number = 0

        def before() -> float | None:
            nonlocal number
            number += 1
            return self.value if self.steps is None or number in self.steps else None

        return cartpole(before)


@dataclass(frozen=True)
class Counted:
    """CartPole that notes each step in a file; in replica 0, if `behind`, after a number of notes of others.

    Outside of nodes it does not note.
    """

    file: str
    behind: int = 0

    def __call__(self, seed: int) -> Any:
        seen = 0

        def before() -> None:
            nonlocal seen
            if self.behind and node_is("actors", 0):
                while size_of(self.file) < seen + self.behind and not rw.stopping():
                    time.sleep(0.001)
                seen = size_of(self.file)
            else:
                with open(self.file, "ab", buffering=0) as file:
                    file.write(b".")

        return cartpole(before)


@dataclass(frozen=True)
class FailsIn:
    """CartPole that raises in one node."""

    node: str

    def __call__(self, seed: int) -> Any:
        def before() -> None:
            if node_is(self.node, 0):
                raise OverflowError("the table is too small")

        return cartpole(before)


def node_is(name: str, replica: int) -> bool:
    try:
        node = rw.current_node()
    except RuntimeError:
        return False
    return (node.name, node.replica) == (name, replica)


def size_of(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0
