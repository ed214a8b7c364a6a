"""`InferenceServer`: chooses actions for many actors, in batches.

    actor: act(rows, observation, first) ─┐                          ┌─▶ actions, extras, version, generators
    actor: act(rows, observation, first) ─┼─▶ one call of the policy ┤
    learner: newest_variables(version) ◀──┘ in between, by a thread  └─▶ recurrent state stays here

A server that dies forgets the recurrent state; nothing else is lost. It comes back with the newest weights, callers
repeat the call that was lost, and the answer says that what their environments had in memory was forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

import ropewalk as rw
from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.inference.caller_rows import CallerRows, Rows, set_words, unpacked, words_of
from ropewalk.rl.inference.joined_generator import JoinedGenerator
from ropewalk.rl.inference.recurrent_memory import RecurrentMemory, StateArrays
from ropewalk.rl.policies.policy import ActionChoice, Policy
from ropewalk.rl.variables import Variables

MAX_ROWS = 1024
"""Rows of a batch at most."""
MAX_WAIT_S = 0.001
"""Seconds for which a call waits for callers of the last batch, which are expected to call again."""


class VariableSource(Protocol):
    """What has weights, such as a learner."""

    def newest_variables(self, have: int) -> Variables | None:
        """Return the newest weights, or None if they have the version `have`."""
        ...


@dataclass(frozen=True, slots=True)
class InferenceAnswer:
    """Actions for the rows of a call. All arrays have shape (rows, ...).

    Attributes:
        action: see `ActionChoice`.
        extras: see `ActionChoice`.
        facts: int64, shape (rows, 8): `version`, `forgot` and `words` of each row, in one array because each array of
            an answer costs several microseconds at both ends.
    """

    action: Array
    extras: Mapping[str, Array]
    facts: NDArray[np.int64]

    @classmethod
    def of(cls, arrays: Sequence[Array], extra_names: Sequence[str]) -> InferenceAnswer:
        """Return the answer that `arrays` is of."""
        action, facts, *extras = arrays
        return cls(action, dict(zip(extra_names, extras, strict=True)), cast("NDArray[np.int64]", facts))

    def part(self, rows: slice) -> InferenceAnswer:
        """Return the answer for some of the rows."""
        extras = {name: array[rows] for name, array in self.extras.items()}
        return InferenceAnswer(self.action[rows], extras, self.facts[rows])

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The answer as it travels: a tuple of a few arrays is sent without being pickled anew each time."""
        return self.action, self.facts, *self.extras.values()

    @property
    def version(self) -> NDArray[np.int64]:
        """Version of the weights, shape (rows,)."""
        return self.facts[:, 0]

    @property
    def forgot(self) -> NDArray[np.bool_]:
        """Whether the recurrent state was unknown here, so that it began anew within an episode; shape (rows,)."""
        return self.facts[:, 1] != 0

    @property
    def words(self) -> NDArray[np.uint64]:
        """State of the caller's generator after what was drawn from it, shape (rows, 6)."""
        return self.facts[:, 2:].view(np.uint64)


class InferenceServer:
    """A service that acts for groups of environments; actors call it through a `RemotePolicy`.

        inference = program.add(rw.Service(InferenceServer, make_policy, learner.client(on_lost="retry")), replicas=2,
                                restart="on_failure")

    Each row gets the action that a policy in the actor would choose from the same generator. Networks return slightly
    other numbers for other sizes of batches, since additions are grouped differently: log-probabilities differ in their
    last digits, and one action in millions may. With `exact` there is no difference.

    Args:
        make_policy: makes the policy of a group.
        learner: gives the weights; the constructor waits for the first ones.
        refresh_s: seconds between requests for newer weights.
        exact: whether the rows of each call are evaluated apart, so that actions are those of local policies bit for
            bit; calls still travel, wait and return together.
    """

    def __init__(
        self,
        make_policy: Callable[[int], Policy],
        learner: VariableSource,
        *,
        refresh_s: float = 0.05,
        exact: bool = False,
    ) -> None:
        if refresh_s <= 0:
            raise ValueError(f"refresh_s must be a number of seconds above 0, not {refresh_s}")
        self._make_policy, self._learner = make_policy, learner
        self._refresh_s, self._exact = refresh_s, exact
        self._policy = make_policy(0)
        self._group_parts: dict[int, object] = {0: self._policy.group_part}
        self._memory = RecurrentMemory(self._policy.initial_state)
        self._generators: list[np.random.Generator] = []
        self._extra_names: dict[bool, tuple[str, ...]] = {}
        self._version = -1
        self._num_batches = self._num_rows = 0
        self._lock = threading.Lock()
        """Held while the policy acts or gets weights, and while the memory is used."""
        self._refresh()

    def __repr__(self) -> str:
        return f"<InferenceServer version={self._version}>"

    def run(self) -> None:
        """Ask for newer weights until the program stops."""
        while not rw.wait_for_stop(timeout_s=self._refresh_s):
            self._refresh()

    @rw.batched(max_size=MAX_ROWS, max_wait_s=MAX_WAIT_S, concatenate=True)
    @rw.idempotent
    def act(
        self, rows: Rows, observation: Observation, first: NDArray[np.bool_], greedy: bool = False
    ) -> tuple[Array, ...]:
        """Choose an action for each row.

        Args:
            rows: the callers and their generators, shape (rows, 10); see `ropewalk.rl.inference.caller_rows`.
            observation: observations, shape (rows, ...).
            first: whether a row begins an episode, shape (rows,); where True, the recurrent state is reset before
                it is used.
            greedy: act as an evaluator does, without exploration.

        Returns:
            `InferenceAnswer.arrays`; the names of the extras are `extra_names`.
        """
        calls = unpacked(rows)
        with self._lock:
            while len(self._generators) < len(calls):
                self._generators.append(np.random.Generator(np.random.PCG64(0)))
            for call, generator in zip(calls, self._generators, strict=False):
                set_words(generator, call.words)
            batches = [[call] for call in calls] if self._exact else [calls]
            generators = iter(self._generators)
            answers = [
                self._act(batch, [next(generators) for _ in batch], observation, first, greedy) for batch in batches
            ]
            self._num_batches += 1
            self._num_rows += len(rows)
            answer = answers[0] if len(answers) == 1 else _joined_answers(answers)
            self._extra_names[greedy] = tuple(answer.extras)
        return answer.arrays

    @rw.concurrent(64)
    @rw.idempotent
    def extra_names(self, greedy: bool = False) -> tuple[str, ...] | None:
        """Return the names of the extras of all answers; None if this server, in this life, has given none yet."""
        return self._extra_names.get(greedy)

    @rw.concurrent(64)
    @rw.idempotent
    def initial_state(self, num_envs: int) -> dict[str, Array]:
        """Return the recurrent state at the first step of an episode; see `Policy.initial_state`."""
        return self._policy.initial_state(num_envs)

    @rw.concurrent(64)
    @rw.idempotent
    def state_before(self, group: int, run: int, step: int, num_envs: int) -> StateArrays:
        """Return a group's recurrent state before its step `step`: the next one, or the last one."""
        with self._lock:
            return self._memory.before(group, run, step, num_envs)[0]

    @rw.concurrent(64)
    @rw.idempotent
    def set_state(self, group: int, run: int, step: int, state: StateArrays) -> None:
        """Let a group begin its step `step` with a recurrent state."""
        num_envs = len(next(iter(state.values())))
        with self._lock:
            self._memory.keep(group, run, step - 1, num_envs, state, state)

    @rw.concurrent(64)
    @rw.idempotent
    def served(self) -> dict[str, int]:
        """Return the numbers of batches and of rows so far, and the version of the weights."""
        return {"batches": self._num_batches, "rows": self._num_rows, "version": self._version}

    def _refresh(self) -> None:
        newest = self._learner.newest_variables(self._version)
        if newest is not None:
            with self._lock:
                self._policy.load(newest)
                self._version = newest.version

    def _act(
        self,
        calls: Sequence[CallerRows],
        generators: Sequence[np.random.Generator],
        observation: Observation,
        first: NDArray[np.bool_],
        greedy: bool,
    ) -> InferenceAnswer:
        """Choose actions for the rows of some calls, which follow each other."""
        rows = slice(calls[0].start, calls[-1].stop)
        observation, first = _rows_of(observation, rows), first[rows]
        sizes = [call.num_envs for call in calls]
        rng = (
            generators[0] if len(calls) == 1 else JoinedGenerator(list(zip(generators, sizes, strict=True)))
        )  # which draws whatever a policy asks for
        policy = self._policy.joined([(self._group_part(call.group), call.num_envs) for call in calls])
        forgot: Sequence[bool] = [False] * len(calls)
        if self._memory.is_needed:
            known = [self._memory.before(call.group, call.run, call.step, call.num_envs) for call in calls]
            before = {name: np.concatenate([state[name] for state, _ in known]) for name in known[0][0]}
            choice = policy.act(observation, first, before, rng, greedy=greedy)
            self._keep(calls, [state for state, _ in known], choice)
            forgot = [not is_known for _, is_known in known]
        else:
            choice = policy.act(observation, first, {}, rng, greedy=greedy)
        of_calls = [
            (self._version, has_forgotten, *words_of(generator))
            for has_forgotten, generator in zip(forgot, generators, strict=True)
        ]
        facts = np.array(of_calls, np.uint64).view(np.int64).repeat(sizes, axis=0)
        if any(forgot):
            facts[first, 1] = 0  # a new episode begins there anyway
        return InferenceAnswer(choice.action, dict(choice.extras), facts)

    def _keep(self, calls: Sequence[CallerRows], before: Sequence[StateArrays], choice: ActionChoice) -> None:
        offset = calls[0].start
        for call, state in zip(calls, before, strict=True):
            rows = slice(call.start - offset, call.stop - offset)
            after = {name: np.array(array[rows]) for name, array in choice.state.items()}
            self._memory.keep(call.group, call.run, call.step, call.num_envs, state, after)

    def _group_part(self, group: int) -> object:
        if self._group_parts[0] is None:
            return None
        if group not in self._group_parts:
            self._group_parts[group] = self._make_policy(group).group_part
        return self._group_parts[group]


def _rows_of(observation: Observation, rows: slice) -> Observation:
    if isinstance(observation, dict):
        return {name: array[rows] for name, array in observation.items()}
    return observation[rows]


def _joined_answers(answers: Sequence[InferenceAnswer]) -> InferenceAnswer:
    return InferenceAnswer(
        action=np.concatenate([answer.action for answer in answers]),
        extras={name: np.concatenate([answer.extras[name] for answer in answers]) for name in answers[0].extras},
        facts=np.concatenate([answer.facts for answer in answers]),
    )


__all__ = ["InferenceAnswer", "InferenceServer", "VariableSource"]
