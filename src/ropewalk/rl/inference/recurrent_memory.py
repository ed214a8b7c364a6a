"""`RecurrentMemory`: the recurrent state of groups of environments, kept where the network is. Pure.

A group's state is known by the run of its caller and by the number of the last step:

    asked for step  s + 1   the state after step s
                    s       the state before it: the call of step s is repeated
                    other, or of another run, or never heard of      the initial state
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ropewalk.rl.environments.spec import Array

StateArrays: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class _Kept:
    run: int
    step: int
    num_envs: int
    before: StateArrays
    after: StateArrays


class RecurrentMemory:
    """The state of each group, before and after its last step.

    Args:
        initial_state: makes the state at the first step of an episode for a number of environments.
    """

    def __init__(self, initial_state: Callable[[int], StateArrays]) -> None:
        self._initial_state = initial_state
        self._kept: dict[int, _Kept] = {}
        self._names = tuple(initial_state(1))

    @property
    def is_needed(self) -> bool:
        """Whether there is any state."""
        return bool(self._names)

    def before(self, group: int, run: int, step: int, num_envs: int) -> tuple[StateArrays, bool]:
        """Return the state before a step, and whether it is known; otherwise it is the initial one."""
        kept = self._kept.get(group)
        if kept is not None and (kept.run, kept.num_envs) == (run, num_envs):
            if step == kept.step + 1:
                return kept.after, True
            if step == kept.step:
                return kept.before, True
        return self._initial_state(num_envs), False

    def keep(self, group: int, run: int, step: int, num_envs: int, before: StateArrays, after: StateArrays) -> None:
        """Keep the states before and after a step; the arrays must not be written to any more."""
        if self._names:
            self._kept[group] = _Kept(run, step, num_envs, before, after)


__all__ = ["RecurrentMemory", "StateArrays"]
