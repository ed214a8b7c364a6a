"""What the agents that value discrete actions need of an environment's spec: the number of actions, and a network."""

from __future__ import annotations

from ropewalk.rl.environments.spec import DiscreteAction, EnvironmentSpec
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.initialisation import draw_zero_biases, seeded
from ropewalk.rl.networks.normalisation import refuse_statistics
from ropewalk.rl.networks.torso import TorsoFactory, torso_of
from ropewalk.rl.networks.value_distributions import ReturnKind


def num_discrete_actions(agent: str, spec: EnvironmentSpec) -> int:
    """Return the number of actions.

    Args:
        agent: its name, for the error.
        spec: observations and actions of the environment, by shape and type.

    Raises:
        ValueError: actions are not one choice among some.
    """
    if isinstance(spec.action, DiscreteAction):
        return spec.action.num
    raise ValueError(
        f"{agent} values each of a number of discrete actions, but the environment's actions are {spec.action}; use "
        "SAC or TD3 for continuous actions, PPO for any, or make the combinations of several choices one Discrete "
        "action"
    )


def make_action_values(
    agent: str,
    spec: EnvironmentSpec,
    network: TorsoFactory,
    seed: int,
    *,
    returns: ReturnKind | None = None,
    dueling: bool = False,
    noisy: bool = False,
    hidden: int = 0,
) -> ActionValueNetwork:
    """Make a network of action values for an environment, with weights that follow from the seed.

    Args:
        agent: its name, for errors.
        spec: observations and actions of the environment, by shape and type.
        network: makes the torso.
        seed: seed of the weights; torch's global generator is neither used nor changed.
        returns: see `ActionValueNetwork`, as the others.
        dueling: the same.
        noisy: the same.
        hidden: the same.

    Raises:
        ValueError: the actions are not discrete, or the network keeps statistics of observations.
    """
    num_actions = num_discrete_actions(agent, spec)
    with seeded(seed):
        torso = torso_of(network, spec)
        refuse_statistics(torso, agent)
        draw_zero_biases(torso)
        return ActionValueNetwork(torso, num_actions, returns=returns, dueling=dueling, noisy=noisy, hidden=hidden)


__all__ = ["make_action_values", "num_discrete_actions"]
