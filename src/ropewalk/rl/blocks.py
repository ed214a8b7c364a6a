"""`Block`: what some environments of one actor did in some consecutive steps. The unit of experience."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ropewalk.rl.environments.spec import Array


@dataclass(frozen=True, slots=True)
class EpisodeEnd:
    """An episode that ended in a block.

    Attributes:
        env: index of the environment within its group.
        score: undiscounted sum of rewards.
        length: steps.
        terminated: whether it was terminated; otherwise it was truncated.
        info: numbers that the environment gave with the last step, such as "is_success".
    """

    env: int
    score: float
    length: int
    terminated: bool
    info: Mapping[str, float] = field(default_factory=dict[str, float])

    def __reduce__(self) -> Any:
        return EpisodeEnd, (self.env, self.score, self.length, self.terminated, self.info)


@dataclass(frozen=True, slots=True)
class Block:
    """What the environments of one group did in consecutive steps.

    T is the number of steps, N the number of environments; arrays are time-major. Columns:

        observation [T+1, N, ...]   or "observation.<name>" for each entry of a dictionary; row T is acted on next
        first       [T+1, N] bool   the observation is the first of an episode: recurrent state is reset before acting
        action      [T, N, ...]
        reward      [T, N] float32
        terminated  [T, N] bool
        truncated   [T, N] bool
        mask        [T, N] bool     False where the step only began an episode (see `VectorEnvironment`); such steps
                                    count in no mean and in no counter
        <extra>     [T, N, ...]     what the policy returned beside the action, such as "log_prob"
        state.<name> [N, ...]       recurrent state of the policy before step 0, before any reset by first[0]

    Attributes:
        columns: arrays by name, as above.
        run_id: which life of which group: "2#0" is the first life of group 2. Blocks of one run id are consecutive.
        number: number of this block within its run id, from 0.
        version: version of the weights that chose the actions.
        steps: number of steps that count (mask is True).
        episodes: episodes that ended in it, in order.
        seconds: where the time went: "env", "policy", "reset", "other".
    """

    columns: Mapping[str, Array]
    run_id: str
    number: int
    version: int
    steps: int
    episodes: tuple[EpisodeEnd, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, Any])

    @property
    def num_steps(self) -> int:
        """T, masked steps included."""
        return self.columns["reward"].shape[0]

    @property
    def num_envs(self) -> int:
        """N."""
        return self.columns["reward"].shape[1]


__all__ = ["Block", "EpisodeEnd"]
