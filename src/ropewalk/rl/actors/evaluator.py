"""`evaluate_policy`: scores of a policy that acts greedily."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.environment import EnvironmentFactory, Steps, VectorEnvironment
from ropewalk.rl.environments.mistakes import check_takes_a_seed
from ropewalk.rl.environments.spec import Array, spec_in_words
from ropewalk.rl.environments.vector import make_vector
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.seeds import derived_seed, generator

logger = logging.getLogger(__name__)

MAX_STEPS = 100_000
"""Steps of an episode that are evaluated by default; one of Atari has at most 27,000."""


def evaluate_policy(
    policy: Policy,
    factory: EnvironmentFactory,
    episodes: int = 20,
    *,
    seed: int,
    num_envs: int | None = None,
    max_steps: int = MAX_STEPS,
) -> NDArray[np.float64]:
    """Return the scores of some episodes that the policy plays greedily.

    Each environment plays a number of episodes that is fixed in advance, so that short episodes count as much as long
    ones.

    Args:
        policy: what is evaluated, with its weights.
        factory: makes environments, as for `make_vector`.
        episodes: how many episodes count.
        seed: equal seeds give equal scores; other episodes than a run of the same seed trains on.
        num_envs: environments that are stepped together; by default one for each two episodes, at most 16. If the
            factory makes environments that are stepped together, their number is taken.
        max_steps: an episode that has neither ended nor been truncated after this number of steps is cut, with a
            warning: it counts with its score so far, and the next episode begins with a reset. A
            `gymnasium.vector.VectorEnv` cannot be told to reset one of its environments: there, the steps that follow
            count as the next episode.

    Returns:
        The undiscounted sum of rewards of each episode, shape (episodes,): those of environment 0 first.

    Raises:
        ValueError: an argument is less than 1, or the policy was made for other observations or actions than those of
            this environment.
        TypeError: this is no policy, or the factory cannot be called with a seed.
    """
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is of type {type(policy).__name__}; give result.policy(), or rl.load_policy(path)")
    check_takes_a_seed(factory)
    return PolicyEvaluator(factory, max_steps).scores(policy, episodes, seed=seed, num_envs=num_envs)


class EvaluationOver(Exception):  # no error: nobody waits for the scores
    """The process that evaluates was asked to end."""


class PolicyEvaluator:
    """Plays episodes greedily, one evaluation after the other; another thread may look how far it is.

    Args:
        factory: see `evaluate_policy`.
        max_steps: the same.

    Attributes:
        num_calls: steps that were asked of the environments so far.
    """

    def __init__(self, factory: EnvironmentFactory, max_steps: int = MAX_STEPS) -> None:
        self._factory, self._max_steps = factory, max_steps
        self._environment: VectorEnvironment | None = None
        self.num_calls: int = 0

    def scores(
        self,
        policy: Policy,
        episodes: int,
        *,
        seed: int,
        num_envs: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> NDArray[np.float64]:
        """Return the scores of some episodes; see `evaluate_policy`.

        Args:
            policy: see `evaluate_policy`.
            episodes: the same.
            seed: the same.
            num_envs: the same.
            is_over: asked before each step of the environments; the evaluation ends without scores once it is true.

        Raises:
            EvaluationOver: `is_over` was true.
        """
        num_envs = num_envs if num_envs is not None else min(16, (episodes + 1) // 2)
        if episodes < 1 or num_envs < 1 or self._max_steps < 1:
            raise ValueError(
                f"episodes is {episodes}, num_envs is {num_envs} and max_steps is {self._max_steps}; all are at least 1"
            )
        own_seed = derived_seed(seed, "evaluation")
        environment = make_vector(self._factory, min(num_envs, episodes), own_seed, exact=False, keeps_history=False)
        self._environment = environment
        try:
            _check_fit(policy, environment)
            shares, rng = _shares(episodes, environment.num_envs), generator(seed, "evaluation")
            return self._play(policy, environment, shares, rng, is_over)
        finally:
            self._environment = None
            environment.close()

    def call_under_way(self) -> str:
        """Return which call of an environment has not returned yet; "": none. For other threads."""
        environment = self._environment
        if environment is None:
            return ""
        call, comma, seed = environment.call_under_way().partition(",")
        return call and f"{call} of an evaluation{comma}{seed}"

    def _play(
        self,
        policy: Policy,
        environment: VectorEnvironment,
        shares: list[int],
        rng: np.random.Generator,
        is_over: Callable[[], bool],
    ) -> NDArray[np.float64]:
        scores: list[list[float]] = [[] for _ in shares]
        score, length = np.zeros(len(shares)), np.zeros(len(shares), np.int64)
        observation, first = environment.reset(), np.ones(len(shares), np.bool_)
        state: Mapping[str, Array] = policy.initial_state(len(shares))
        while any(len(done) < share for done, share in zip(scores, shares, strict=True)):
            if is_over():
                raise EvaluationOver
            choice = policy.act(observation, first, state, rng, greedy=True)
            steps: Steps = environment.step(choice.action)
            self.num_calls += 1
            observation, first, state = steps.observation, ~steps.mask, choice.state
            score += steps.reward
            length += steps.mask
            ended = steps.terminated | steps.truncated
            for env in np.flatnonzero(ended | (length >= self._max_steps)).tolist():
                if not ended[env]:
                    is_reset = environment.cut(env)
                    if len(scores[env]) < shares[env]:
                        _tell_cut(env, len(scores[env]), float(score[env]), self._max_steps, is_reset=is_reset)
                scores[env].append(float(score[env]))
                score[env] = length[env] = 0
        return np.array([value for done, share in zip(scores, shares, strict=True) for value in done[:share]])


def _check_fit(policy: Policy, environment: VectorEnvironment) -> None:
    if policy.spec is not None and spec_in_words(policy.spec) != spec_in_words(environment.spec):
        raise ValueError(
            f"the policy was made for an environment with {spec_in_words(policy.spec)}, and this one has "
            f"{spec_in_words(environment.spec)}"
        )


def _shares(episodes: int, num_envs: int) -> list[int]:
    """Return how many episodes each environment plays."""
    return [episodes // num_envs + (env < episodes % num_envs) for env in range(num_envs)]


def _tell_cut(env: int, episode: int, score: float, max_steps: int, *, is_reset: bool) -> None:
    logger.warning(
        "episode %d of environment %d of an evaluation had not ended after max_steps=%s steps, and was cut with the "
        "score %g%s: the environment needs a limit of steps, such as gymnasium.wrappers.TimeLimit, or the evaluation "
        "another max_steps",
        episode,
        env,
        f"{max_steps:,}",
        score,
        "" if is_reset else "; as this vector environment cannot reset it, the steps that follow count as an episode",
    )


__all__ = ["MAX_STEPS", "EvaluationOver", "PolicyEvaluator", "evaluate_policy"]
