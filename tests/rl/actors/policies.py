"""Policies for tests, in numpy: one without memory, one with it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.policies.policy import ActionChoice, Policy
from ropewalk.rl.seeds import generator
from ropewalk.rl.variables import Variables


def chosen(logits: NDArray[np.float32], rng: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
    """One action for each row, and its log-probability."""
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    noise = 0 if greedy else rng.gumbel(size=logits.shape)
    action = (log_probs + noise).argmax(-1)
    return action, log_probs[np.arange(len(action)), action].astype(np.float32)


class TwoLayers(Policy):
    """A perceptron with a hidden layer of 64, for discrete actions."""

    def __init__(self, inputs: int, num_actions: int, seed: int = 0) -> None:
        rng = generator(seed, "two layers")
        self.layers: list[Array] = [
            rng.normal(size=shape).astype(np.float32) / np.float32(shape[0] ** 0.5)
            for shape in ((inputs, 64), (64, 64), (64, num_actions))
        ]

    def act(
        self,
        observation: Observation,
        first: NDArray[np.bool_],
        state: Mapping[str, Array],
        rng: np.random.Generator,
        *,
        greedy: bool = False,
    ) -> ActionChoice:
        assert not isinstance(observation, dict)
        first_layer, second_layer, last_layer = self.layers
        hidden = np.tanh(np.matmul(observation, first_layer))
        hidden = np.tanh(np.matmul(hidden, second_layer))
        action, log_prob = chosen(np.matmul(hidden, last_layer), rng, greedy)
        return ActionChoice(action, {"log_prob": log_prob})

    def load(self, variables: Variables) -> None:
        self.layers = [variables.arrays[f"layer{k}"] for k in range(3)]


class Remembering(Policy):
    """Decides by a decaying sum of what it has seen in the episode, and tells how many steps it remembers."""

    def __init__(self, inputs: int, num_actions: int, seed: int = 0) -> None:
        self.weight = generator(seed, "remembering").normal(size=(inputs, num_actions)).astype(np.float32)

    def initial_state(self, num_envs: int) -> dict[str, Array]:
        return {"memory": np.zeros((num_envs, len(self.weight)), np.float32), "steps": np.zeros(num_envs, np.int64)}

    def act(
        self,
        observation: Observation,
        first: NDArray[np.bool_],
        state: Mapping[str, Array],
        rng: np.random.Generator,
        *,
        greedy: bool = False,
    ) -> ActionChoice:
        assert not isinstance(observation, dict)
        memory = np.where(first[:, None], 0, np.multiply(state["memory"], np.float32(0.9))) + observation
        steps = np.where(first, 0, state["steps"]) + 1
        action, log_prob = chosen(memory @ self.weight, rng, greedy)
        return ActionChoice(
            action, {"log_prob": log_prob, "steps": steps}, {"memory": memory.astype(np.float32), "steps": steps}
        )

    def load(self, variables: Variables) -> None:
        self.weight = variables.arrays["weight"]


class Always(Policy):
    """The same actions in every step."""

    def __init__(self, action: Array) -> None:
        self.action = action

    def act(
        self,
        observation: Observation,
        first: NDArray[np.bool_],
        state: Mapping[str, Array],
        rng: np.random.Generator,
        *,
        greedy: bool = False,
    ) -> ActionChoice:
        return ActionChoice(self.action)

    def load(self, variables: Variables) -> None:
        raise AssertionError("a policy without weights was given some")
