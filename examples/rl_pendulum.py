"""Swing a pendulum up with SAC, in one process, with an evaluation every thousand steps; the policy ends in a file.

    pip install 'ropewalk[rl]' matplotlib
    python examples/rl_pendulum.py                # within a minute: 8,000 steps, 7,000 updates

SAC learns continuous actions from replay: every step is drawn again in some 256 batches. A score of -200 means that the
pendulum goes up by the shortest way and stays there. (Haarnoja et al., Soft Actor-Critic, 2018,
https://arxiv.org/abs/1812.05905)
"""

from __future__ import annotations

import argparse

import numpy as np

from ropewalk import rl

PENDULUM = rl.Gymnasium("Pendulum-v1")


def main(
    steps: int = 8_000, seed: int = 0, policy: str = "pendulum.safetensors", picture: str = "pendulum.png"
) -> rl.ExperimentResult:
    experiment = rl.Experiment(
        rl.SAC(optimizer=rl.TorchAdam(1e-3), learning_starts=min(1_000, steps // 2)),
        PENDULUM,
        rl.MLP((64, 64), activation="relu"),
        steps=steps,
        seed=seed,
        evaluation=rl.Evaluation(every_steps=max(1, steps // 8), episodes=10),
    )
    result = experiment.run()
    print(result)
    result.save(policy)
    scores = rl.evaluate_policy(rl.load_policy(policy), PENDULUM, episodes=20, seed=seed)
    print(f"the policy in {policy} scores {np.mean(scores):.0f} +- {np.std(scores):.0f} in 20 episodes")
    if picture:
        from ropewalk.rl.pictures import draw_learning_curves

        draw_learning_curves({"SAC": result}, picture, title="SAC on Pendulum-v1", threshold=-200)
        print(f"learning curve: {picture}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="SAC on Pendulum.")
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="pendulum.safetensors", help="where to save the policy")
    parser.add_argument("--picture", default="pendulum.png", help="where to draw the learning curve, '' for none")
    main(**vars(parser.parse_args()))
