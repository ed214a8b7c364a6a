"""Balance a pole with IMPALA: two actors collect experience, a learner learns from it, and none waits for another.

    pip install 'ropewalk[rl]' matplotlib
    python examples/rl_cartpole.py                # half a minute on two cores
    python examples/rl_cartpole.py --actors 0     # everything in this process, for the debugger

    actor: 16 environments ── blocks of 20 steps ──▶ queue ─▶ learner
      ▲                                                          │
      └──────────────────────── weights ────────────────────────┘

Actors run ahead with weights that are a few updates old; V-trace corrects for that. (Espeholt et al., IMPALA, 2018,
https://arxiv.org/abs/1802.01561)
"""

from __future__ import annotations

import argparse

from ropewalk import rl


def main(steps: int = 250_000, actors: int = 2, seed: int = 0, picture: str = "cartpole.png") -> rl.ExperimentResult:
    experiment = rl.Experiment(
        rl.IMPALA(unroll=20, envs=16, batch_size=2, optimizer=rl.TorchAdam(2e-3), reward_scale=0.1),
        rl.Gymnasium("CartPole-v1"),
        rl.MLP((64, 64)),
        steps=steps,
        seed=seed,
        groups=2,
    )
    result = experiment.run(actors)
    scores = result.evaluate(episodes=20)
    print(result)
    print(f"without exploration: {sum(scores) / len(scores):.0f}, the worst of 20 episodes {min(scores):.0f}, of 500")
    if picture:
        from ropewalk.rl.pictures import draw_learning_curves

        draw_learning_curves({"IMPALA": result}, picture, title="IMPALA on CartPole-v1", threshold=475)
        print(f"learning curve: {picture}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="IMPALA on CartPole.")
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--actors", type=int, default=2, help="processes that collect; 0: all in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="cartpole.png", help="where to draw the learning curve, '' for none")
    main(**vars(parser.parse_args()))
