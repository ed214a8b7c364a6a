"""What the settings of other libraries are called here: for the message about one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

from ropewalk.near_names import instead_of

_RATE = "optimizer=rl.TorchAdam(rate)"
_UPDATES = "samples_per_insert (DQN) or updates_per_step (SAC, TD3)"
_HERE = {
    "learning_rate": _RATE,
    "lr": _RATE,
    "n_steps": "unroll",
    "num_steps": "unroll",
    "rollout_fragment_length": "unroll",
    "n_envs": "envs",
    "num_envs": "envs",
    "n_epochs": "epochs",
    "num_epochs": "epochs",
    "update_epochs": "epochs",
    "num_minibatches": "minibatches",
    "minibatch_size": "minibatches, a number of parts: unroll * envs * groups / minibatch_size",
    "gamma": "discount",
    "gae_lambda": "lambda_",
    "clip_range": "clip",
    "clip_coef": "clip",
    "clip_param": "clip",
    "clip_range_vf": "value_clip",
    "ent_coef": "entropy_cost, or temperature for SAC",
    "entropy_coeff": "entropy_cost",
    "vf_coef": "baseline_cost = 2 * vf_coef",
    "vf_loss_coeff": "baseline_cost = 2 * vf_loss_coeff for PPO, and the same number for IMPALA",
    "grad_clip": "max_grad_norm",
    "normalize_advantage": "normalise_advantages",
    "buffer_size": "replay_size",
    "train_freq": _UPDATES,
    "gradient_steps": _UPDATES,
    "exploration_fraction": "epsilon=rl.LinearSchedule(initial, final, until=fraction)",
    "target_update_interval": "target=rl.TargetCopy(updates)",
    "policy_kwargs": "the network of rl.Experiment, such as rl.MLP((64, 64))",
    "net_arch": "the network of rl.Experiment, such as rl.MLP((64, 64))",
    "total_timesteps": "steps",
    "env": "environment",
    "n_eval_episodes": "evaluation=rl.Evaluation(every_steps, episodes)",
    "eval_freq": "every_steps of rl.Evaluation, in steps of all environments",
    "activation_fn": "activation of rl.MLP, by its name, such as 'relu'",
    "tensorboard_log": "log=rl.TensorBoardLogger(folder) of run()",
    "verbose": 'log="terminal" or "silent" of run()',
    "callback": "log= of run()",
}
"""Settings of Stable-Baselines3, CleanRL and RLlib, and where docs/reinforcement-learning.md says they are here."""


def refuse_unknown(of: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse settings that do not exist.

    Args:
        of: what they are settings of.
        given: the names that were given.
        known: the names that there are.

    Raises:
        TypeError: the first one that does not exist, and what to write instead.
    """
    known = list(known)
    for name in given:
        if name in known:
            continue
        words = f"; write {_HERE[name]}" if name in _HERE else instead_of(name, known, "it has")
        raise TypeError(f"{of} has no setting {name!r}{words}")


__all__ = ["refuse_unknown"]
