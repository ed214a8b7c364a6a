"""`StepAdder`: the steps of one's own loop, made into blocks, for any adder.

adder = rl.StepAdder(rl.NStepAdder(3, 0.99), replay)
adder.first(observation)
while ...:
    adder.step(action, observation, reward, terminated=terminated, truncated=truncated)
    if terminated or truncated:
        adder.first(next_observation)
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from ropewalk.argument_kinds import check_number
from ropewalk.errors import NotFinite
from ropewalk.rl.adders.adder import Adder
from ropewalk.rl.adders.stream_adder import is_checked
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import Array, observation_columns
from ropewalk.rl.replay.inserter import Inserter
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.writer import new_run_id


class StepAdder:
    """Adds single steps of one environment to replay.

    Args:
        adder: makes items of the steps; no other object may use it.
        replay: a client of a replay server, a `ReplayServer`, a `ReplayTables` or a `ShardedReplay`.
        num_steps: steps that are sent together.
        ahead: messages that may be without an answer; a further one waits.
        run_id: names the stream; None: a new one, which begins with the name of the node.

    Attributes:
        version: version of the weights that choose the actions; set it when they change.

    Raises:
        ValueError: `num_steps` is below 1.
    """

    def __init__(
        self, adder: Adder, replay: Any, *, num_steps: int = 32, ahead: int = 4, run_id: str | None = None
    ) -> None:
        check_number("num_steps", num_steps, Integral, "a whole number", least=1, required=True)
        self.version = 0
        self._adder, self._inserter = adder, Inserter(replay, ahead)
        self._run_id = new_run_id() if run_id is None else run_id
        self._most, self._number = num_steps, 0
        self._steps: list[dict[str, Array]] = []
        """Steps that were not sent yet, each with the observation before it."""
        self._not_taken: Insertion | None = None
        """Made of steps, and refused by the inserter, because earlier ones could not be inserted."""
        self._next: dict[str, Array] = {}
        """The columns "observation" and "first" of the next action."""
        self._in_episode = False
        self._reset: dict[str, Array] = {}
        """The values of a step that only begins an episode; none before the first step."""

    def __repr__(self) -> str:
        return f"<StepAdder {self._adder!r}>"

    def first(self, observation: Any) -> None:
        """Begin an episode.

        Args:
            observation: an array, or a dictionary of arrays.

        Raises:
            RuntimeError: the episode before has not ended.
            NotFinite: the observation holds NaN or an infinite value; nothing was added.
            ValueError: it has other names or shapes than those before; nothing was added.
        """
        if self._in_episode:
            raise RuntimeError(
                "first was called in the middle of an episode; give its last step terminated=True or truncated=True"
            )
        after = _columns(observation) | {"first": np.array(True)}
        self._check(after, self._next)
        if self._reset:
            self._steps.append(self._next | self._reset)
        self._next = after
        self._in_episode = True

    def step(
        self,
        action: ArrayLike,
        observation: Any,
        reward: float,
        *,
        terminated: bool,
        truncated: bool = False,
        extras: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Add a step.

        Args:
            action: the action that was taken.
            observation: the observation that it led to; at the end of an episode its last one.
            reward: the reward for the action.
            terminated: whether the episode ended in a state from which no reward follows.
            truncated: whether the episode was cut off, by a time limit for example.
            extras: what else the learner needs, such as "log_prob".

        Raises:
            RuntimeError: `first` was not called for this episode; or replay is in this process, and nothing can be
                inserted before something is sampled. Then the step was taken, and is sent by a later call.
            NotFinite: the reward or the observation is NaN or infinite; the step was not taken.
            ValueError: a value has another shape than those before, or others were given; the step was not taken.
        """
        if not self._in_episode:
            raise RuntimeError("step was called before first, or after the end of an episode; call first(observation)")
        step = {name: np.array(value) for name, value in (extras or {}).items()}
        step |= {"action": np.array(action), "reward": np.array(reward, np.float32), "mask": np.array(True)}
        step |= {"terminated": np.array(terminated), "truncated": np.array(truncated)}
        after = _columns(observation) | {"first": np.array(False)}
        self._check(after, self._next)
        self._check(step, self._reset)
        self._steps.append(self._next | step)
        self._reset = {name: np.zeros_like(value) for name, value in step.items()}
        self._next = after
        self._in_episode = not (terminated or truncated)
        if len(self._steps) >= self._most:
            self._send(self._most)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send all steps, and wait until they were inserted; steps whose items are not complete are kept.

        Args:
            timeout_s: seconds; None waits for ever.

        Raises:
            DeadlineExceeded: after `timeout_s`; the steps stay under way.
        """
        self._send(1)
        self._inserter.flush(timeout_s)

    def close(self) -> None:
        """Give up what was not inserted yet; may be called twice."""
        self._inserter.close()

    def _check(self, values: Mapping[str, Array], before: Mapping[str, Array]) -> None:
        """Refuse values that a block of steps would be refused for, or could not be made of."""
        for name, value in values.items():
            if is_checked(name, value) and not np.isfinite(value).all():
                step = self._number * self._most + len(self._steps)
                raise NotFinite(
                    f"{name} is {value[~np.isfinite(value)].flat[0]} at step {step} of run {self._run_id}, which was "
                    f"not taken. Look at this environment or clip what it gives",
                    column=name,
                    run_id=self._run_id,
                    env=0,
                    step=step,
                )
        shapes = {name: value.shape for name, value in values.items()}
        if before and shapes != (shapes_before := {name: value.shape for name, value in before.items()}):
            raise ValueError(f"a step has values of shapes {shapes}, and those before have {shapes_before}")

    def _send(self, least: int) -> None:
        """Send the insertion that was not taken, then steps as blocks, while there are at least `least`."""
        while True:
            if self._not_taken is not None:
                self._inserter.insert(self._not_taken)  # if it raises, the next call sends it again
                self._not_taken = None
            if len(self._steps) < least:
                return
            steps, rest = self._steps[: self._most], self._steps[self._most :]
            after = rest[0] if rest else self._next
            rows = {name: [step[name] for step in steps] for name in steps[0]}
            for name in self._next:
                rows[name].append(after[name])
            columns = {name: np.stack(values)[:, None] for name, values in rows.items()}
            num = sum(bool(step["mask"]) for step in steps)
            block = Block(columns, self._run_id, self._number, self.version, num)
            self._not_taken = self._adder.add(block)
            self._steps = rest
            self._number += 1


def _columns(observation: Any) -> dict[str, Array]:
    """A copy of an observation as columns: environments write to theirs again."""
    if isinstance(observation, dict):
        parts = cast("dict[str, ArrayLike]", observation)
        return observation_columns({name: np.array(part) for name, part in parts.items()})
    return observation_columns(np.array(observation))


__all__ = ["StepAdder"]
