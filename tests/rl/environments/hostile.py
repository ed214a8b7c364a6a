"""Environments that hang, crash, exit and raise, in the episodes and steps that they are told."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.rl.environments.scripted import Scripted


def hang_in_c() -> None:
    """Compute in C for years without releasing the interpreter: no Python code of any thread runs."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def sleep() -> None:
    time.sleep(3600)


def segfault() -> None:
    ctypes.string_at(0)


def be_killed() -> None:
    """As the kernel does it when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


class NotRebuildable(Exception):
    """Cannot be unpickled: it wants two arguments and keeps one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self.args  # one argument, and `__init__` wants two


def raise_something() -> None:
    raise ZeroDivisionError("the ball left the table")


def raise_what_cannot_travel() -> None:
    raise NotRebuildable("this", "that")


class Hostile(gymnasium.Env[Any, Any]):
    """Shows the pid of its process and the step; episodes have 4 steps.

    Args:
        fault: what happens in step 2 of a fatal episode.
        is_fatal: says by the seed of an episode whether it is one.
        in_reset: whether it happens in the reset instead.
    """

    observation_space = spaces.Box(0, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, fault: Callable[[], None], fatal: tuple[int, ...] | None, in_reset: bool) -> None:
        self.fault, self.fatal, self.in_reset = fault, fatal, in_reset
        self.time, self.is_fatal = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time, self.is_fatal = 0, self.fatal is None or seed in self.fatal
        if self.is_fatal and self.in_reset:
            self.fault()
        return np.array([os.getpid(), 0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        if self.time == 2 and self.is_fatal:
            self.fault()
        return np.array([os.getpid(), self.time]), 1.0, self.time == 4, False, {"time": self.time}


@dataclass(frozen=True)
class MakesHostile:
    """A factory; without `fatal`, every episode is."""

    fault: Callable[[], None]
    fatal: tuple[int, ...] | None = None
    in_reset: bool = False

    def __call__(self, seed: int) -> Hostile:
        return Hostile(self.fault, self.fatal, self.in_reset)


def cannot_be_made(seed: int) -> gymnasium.Env[Any, Any]:
    raise FileNotFoundError(f"no level file for the seed {seed}")


class NamesItsAction(Scripted):
    """Calls the action of `step` something else than Gymnasium does, as most environments of users."""

    def step(self, a: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().step(a)


def make_with_another_name(seed: int) -> NamesItsAction:
    return NamesItsAction("t9")
