"""Land on the moon with PPO in lock-step: the same weights, bit for bit, for any number of actors and any deaths.

    pip install 'ropewalk[rl]' 'gymnasium[box2d]' matplotlib
    python examples/rl_lunar_lander.py                                  # a minute on two idle cores
    python examples/rl_lunar_lander.py --steps 40000 --actors 1         # compare the digest of the weights
    python examples/rl_lunar_lander.py --steps 40000 --actors 2         # with this one
    python examples/rl_lunar_lander.py --checkpoint runs/lander         # stop it, start it again: it goes on

    round 7:   group 0 ─ block ─┐
               group 1 ─ block ─┼─▶ learner ─▶ weights 8
               group 2 ─ block ─┤
               group 3 ─ block ─┘

Which actor collects which group does not matter: a block follows from seed, group, round and weights. By default it
ends with a mean score of 270 in 20 landings, the worst of them 247; 200 counts as solved.

(Schulman et al., Proximal Policy Optimization, 2017, https://arxiv.org/abs/1707.06347)
"""

from __future__ import annotations

import argparse

from ropewalk import rl


def main(
    steps: int = 500_000,
    actors: int = 2,
    seed: int = 0,
    checkpoint: str | None = None,
    picture: str = "lunar_lander.png",
) -> rl.ExperimentResult:
    agent = rl.PPO(
        unroll=256,
        envs=4,
        epochs=4,
        minibatches=64,
        optimizer=rl.TorchAdam(3e-4, eps=1e-5),
        discount=0.99,
        lambda_=0.98,
        normalise_rewards=True,
    )
    experiment = rl.Experiment(
        agent,
        rl.Gymnasium("LunarLander-v3"),
        rl.MLP((64, 64)),
        steps=steps,
        seed=seed,
        groups=4,  # 16 environments, whatever the number of actors
        checkpoint=checkpoint,
        digest_every=1,
    )
    result = experiment.run(actors)
    scores = result.evaluate(episodes=20)
    print(result)
    print(f"without exploration: {sum(scores) / len(scores):.0f}, the worst of 20 landings {min(scores):.0f}")
    print(f"digest of the weights: {result.digests[-1]}")
    if picture:
        from ropewalk.rl.pictures import draw_learning_curves

        draw_learning_curves({"PPO": result}, picture, title="PPO on LunarLander-v3", threshold=200)
        print(f"learning curve: {picture}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PPO on LunarLander.")
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--actors", type=int, default=2, help="processes that collect; 0: all in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", help="a folder to save the run in, and to go on from")
    parser.add_argument("--picture", default="lunar_lander.png", help="where to draw the learning curve, '' for none")
    main(**vars(parser.parse_args()))
