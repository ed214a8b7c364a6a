"""Updates of IMPALA from frames on a GPU, and on the CPU beside it: `python benchmarks/rl_on_gpu.py`."""

from __future__ import annotations

import statistics
import time
from typing import Any

import gymnasium
import numpy as np
import torch

from ropewalk import rl
from ropewalk.rl.assembly import Assembly

GROUPS, UNROLL, ENVS = 4, 20, 8
FRAMES = GROUPS * UNROLL * ENVS


class Frames(gymnasium.Env[Any, Any]):
    """Noise of the size of Atari's frames."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        return self._seen(), float(action == 0), False, self.num_steps >= 50, {}

    def _seen(self) -> Any:
        return self.np_random.integers(0, 256, (84, 84, 4), dtype=np.uint8)


def seconds(network: Any, device: str, num_updates: int) -> float:
    """The median time of an update, after two."""
    agent = rl.IMPALA(unroll=UNROLL, envs=ENVS, batch_size=GROUPS)
    experiment = rl.Experiment(agent, lambda seed: Frames(), network, steps=FRAMES, groups=GROUPS, device=device)
    assembly = Assembly(experiment, GROUPS)
    spec = assembly.spec()
    rounds = assembly.round_learner(spec)
    for group, adder in enumerate(rounds.adders):
        collector = assembly.collector(assembly.policy(spec, group), group)
        collector.load(rounds.variables())
        rounds.tables.insert(adder.add(collector.collect(UNROLL)))
        collector.close()
    batch = rounds.tables.sample(agent.table, GROUPS)
    taken: list[float] = []
    for _ in range(num_updates + 2):
        began = time.perf_counter()
        rounds.learner.update(batch, 0.0)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


def main() -> None:
    print(f"{torch.cuda.get_device_name()} and {torch.get_num_threads()} threads, {FRAMES} frames an update")
    for name, network in (("NatureCNN", rl.NatureCNN()), ("ImpalaCNN", rl.ImpalaCNN())):
        for device, num_updates in (("cuda", 30), ("cpu", 3)):
            taken = seconds(network, device, num_updates)
            print(f"{name} {device:4}  {1e3 * taken:8.1f} ms an update  {FRAMES / taken:10,.0f} frames/s", flush=True)


if __name__ == "__main__":
    main()
