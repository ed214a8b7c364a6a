"""Remember a cue: R2D2, whose network has a memory, beside DQN, whose network has none.

    pip install 'ropewalk[rl]' matplotlib
    python examples/rl_memory.py                 # within a minute on two idle cores
    python examples/rl_memory.py --blanks 16     # a longer pause between cue and question

    cue ─▶ blank ─▶ blank ─▶ ... ─▶ question ─▶ 1 point if the action is the cue

What is shown at the question is the same for both cues, so an agent that sees only the present is right half of the
time. R2D2 learns from sequences of steps with the recurrent state that its actors had. (Kapturowski et al., Recurrent
Experience Replay in Distributed Reinforcement Learning, 2019)
"""

from __future__ import annotations

import argparse

from ropewalk import rl
from ropewalk.testing.recall import RecallTask


def main(blanks: int = 8, steps: int = 60_000, seed: int = 0, picture: str = "memory.png") -> dict[str, float]:
    """Returns the share of right answers of each agent."""
    length = blanks + 3  # steps of an episode, with the one that begins the next
    r2d2 = rl.R2D2(
        unroll=length,
        envs=8,
        batch_size=32,
        optimizer=rl.TorchAdam(1e-3, eps=1e-5),
        discount=0.99,
        n_step=3,
        burn_in=0,
        trace=2 * length,
        period=length,
        rescaling=None,
        target=rl.TargetCopy(50),
        learning_starts=64,
        replay_size=5_000,
    )
    dqn = rl.DQN(
        unroll=length,
        envs=8,
        batch_size=64,
        optimizer=rl.TorchAdam(1e-3),
        learning_starts=1_000,
        samples_per_insert=4,
        target=rl.TargetCopy(100),
        epsilon=rl.LinearSchedule(1.0, 0.05, until=0.5),
    )
    results: dict[str, rl.ExperimentResult] = {}
    for agent, network in [(r2d2, rl.LSTM(rl.MLP((32,), "relu"), 32)), (dqn, rl.MLP((64,), "relu"))]:
        name = type(agent).__name__
        print(f"{name} on {blanks} blank steps")
        evaluation = rl.Evaluation(every_steps=max(1, steps // 10), episodes=100)
        experiment = rl.Experiment(agent, RecallTask(blanks), network, steps=steps, seed=seed, evaluation=evaluation)
        results[name] = experiment.run(log="silent")
    shares = {name: sum(scores := result.evaluate(episodes=200)) / len(scores) for name, result in results.items()}
    for name, share in shares.items():
        print(f"{name} answers {100 * share:.0f} % right")
    if picture:
        from ropewalk.rl.pictures import draw_learning_curves

        title = f"Recall after {blanks} blank steps, share of right answers"
        draw_learning_curves(results, picture, title=title, spread=False, threshold=0.5, threshold_name="guessing")
        print(f"learning curves: {picture}")
    return shares


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="R2D2 and DQN on a task that needs a memory.")
    parser.add_argument("--blanks", type=int, default=8, help="steps between the cue and the question")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="memory.png", help="where to draw the learning curves, '' for none")
    main(**vars(parser.parse_args()))
