"""Actors without a network: a server chooses actions for all of them, in batches, as in SEED RL.

    pip install 'ropewalk[rl]' matplotlib
    python examples/rl_central_inference.py

    actor 0 ─ observations ─▶ ┌──────────────────┐
    actor 1 ─ observations ─▶ │ inference server │ ◀─ weights ─ learner ◀─ blocks ─ actors
            ◀─ actions ────── └──────────────────┘

The server has the only copy of the network beside the learner's, and the memory of its LSTM for each environment. An
actor has four groups of environments, which ask by one call, and steps them while the server acts for others. It pays
for networks that are too large for the actors' processors; for the small one here it costs more than it saves.
(Espeholt et al., SEED RL, 2020, https://arxiv.org/abs/1910.06591)
"""

from __future__ import annotations

import argparse

from ropewalk import rl


def main(
    steps: int = 140_000, actors: int = 2, inference: int = 1, seed: int = 0, picture: str = "central_inference.png"
) -> rl.ExperimentResult:
    experiment = rl.Experiment(
        rl.IMPALA(
            unroll=20,
            envs=8,
            batch_size=1,
            optimizer=rl.TorchAdam(4e-3),
            anneal_learning_rate=True,  # with a constant one, what is learned comes and goes to the end
            reward_scale=0.1,
        ),
        rl.Gymnasium("CartPole-v1"),
        rl.LSTM(rl.MLP((32,)), 32),
        steps=steps,
        seed=seed,
    )
    result = experiment.run(actors, inference=inference)
    scores = result.evaluate(episodes=20)
    print(result)
    lags = [float(row["policy_lag"] or 0) for row in result.timeline if "policy_lag" in row]
    print(f"updates between the choice of an action and its use: {sum(lags) / max(1, len(lags)):.1f}")
    print(f"without exploration: {sum(scores) / len(scores):.0f}, the worst of 20 episodes {min(scores):.0f}, of 500")
    if picture:
        from ropewalk.rl.pictures import draw_learning_curves

        title = "Central inference on CartPole-v1"
        draw_learning_curves({"IMPALA, central inference": result}, picture, title=title, threshold=475)
        print(f"learning curve: {picture}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="IMPALA with central inference on CartPole.")
    parser.add_argument("--steps", type=int, default=140_000)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--inference", type=int, default=1, help="servers that choose the actions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--picture", default="central_inference.png", help="where to draw the learning curve, '' for none"
    )
    main(**vars(parser.parse_args()))
