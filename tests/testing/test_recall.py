from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ropewalk.rl.actors.evaluator import evaluate_policy
from ropewalk.rl.policies.policy import ActionChoice, Policy
from ropewalk.rl.variables import Variables
from ropewalk.testing.recall import RecallTask


def test_it_is_a_sound_environment() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about rendering and specs, which it does not need
        check_env(RecallTask(2)(0), skip_render_check=True)


@pytest.mark.parametrize(("blanks", "cues"), [(0, 2), (3, 4)])
def test_an_episode_is_a_cue_blanks_and_a_question(blanks: int, cues: int) -> None:
    env = RecallTask(blanks, cues)(0)
    rows = [env.reset(seed=5)[0].tolist()]
    cue = rows[0].index(1)
    rewards, ends = list[float](), list[bool]()
    for _ in range(blanks + 2):
        shown, reward, terminated, truncated, _ = env.step(cue)
        rows.append(shown.tolist())
        rewards.append(reward)
        ends.append(terminated)
        assert not truncated
    blank, question = [0] * (cues + 1), [0] * cues + [1]
    assert rows[1:] == [blank] * blanks + [question, blank]
    assert rewards == [0] * (blanks + 1) + [1] and ends == [False] * (blanks + 1) + [True]


def test_all_cues_are_shown_and_wrong_answers_bring_nothing() -> None:
    env = RecallTask(0, 3)(0)
    seen = set[int]()
    for seed in range(30):
        cue = env.reset(seed=seed)[0].tolist().index(1)
        seen.add(cue)
        env.step(0)
        _, reward, terminated, _, info = env.step((cue + 1) % 3)
        assert reward == 0 and terminated and info == {"is_success": False}
    assert seen == {0, 1, 2}


class Remembers(Policy):
    """Keeps the cue in its recurrent state; or forgets it."""

    def __init__(self, forgets: bool) -> None:
        self.forgets = forgets

    def initial_state(self, num_envs: int) -> dict[str, Any]:
        return {"cue": np.zeros(num_envs, np.int64)}

    def act(self, observation: Any, first: Any, state: Any, rng: Any, *, greedy: bool = False) -> ActionChoice:
        cue = np.where(first, observation[:, :-1].argmax(-1), state["cue"])
        return ActionChoice(np.zeros_like(cue) if self.forgets else cue, state={"cue": cue})

    def load(self, variables: Variables) -> None:
        del variables


def test_only_a_memory_solves_it() -> None:
    scores = [
        evaluate_policy(Remembers(forgets), RecallTask(4), episodes=100, seed=0).mean() for forgets in (False, True)
    ]
    assert scores[0] == 1 and 0.3 < scores[1] < 0.7


@pytest.mark.parametrize("arguments", [(-1, 2), (3, 1)])
def test_an_environment_without_a_question_is_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"blanks is {arguments[0]} and cues is {arguments[1]}"):
        RecallTask(*arguments)
