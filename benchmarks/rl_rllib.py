"""Trains CartPole by RLlib's IMPALA, and prints steps, wall time and CPU time of all its processes as JSON.

Run by the Python of an environment that has `ray[rllib]` and torch: `rl_training_rows` does.
"""

from __future__ import annotations

import json
import sys
import time

import probes
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main(duration_s: float) -> None:
    # It reserves a core for each runner, and waits for ever where there are fewer.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=4, num_envs_per_env_runner=8, rollout_fragment_length=20)
        .learners(num_learners=0)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .training(train_batch_size_per_learner=640, lr=1e-3)
        .reporting(min_time_s_per_iteration=1)
    )
    algorithm = config.build_algo()
    try:
        sampled = 0.0
        while sampled < 5_000:
            sampled = sampled_by(algorithm.train())
        pids = probes.family()
        first, wall_s, cpu_s = sampled, time.perf_counter(), probes.cpu_s(pids)
        while time.perf_counter() - wall_s < duration_s:
            sampled = sampled_by(algorithm.train())
        print(
            json.dumps(
                {
                    "steps": sampled - first,
                    "wall_s": time.perf_counter() - wall_s,
                    "cpu_s": probes.cpu_s(pids) - cpu_s,
                }
            )
        )
    finally:
        algorithm.stop()


def sampled_by(result: dict[str, dict[str, float]]) -> float:
    return float(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0))


if __name__ == "__main__":
    main(float(sys.argv[1]))
