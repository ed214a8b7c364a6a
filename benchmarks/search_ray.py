"""Runs trials of fifty milliseconds by Ray Tune, and prints the seconds as JSON; run by a Python that has ray[tune]."""

from __future__ import annotations

import json
import sys
import time

import ray
from ray import tune


def paused(config: dict[str, float]) -> dict[str, float]:
    time.sleep(0.05)
    return {"score": config["x"]}


def main(trials: int) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    run_config = tune.RunConfig(verbose=0)
    tune_config = tune.TuneConfig(num_samples=trials, max_concurrent_trials=2, metric="score", mode="max")
    tuner = tune.Tuner(paused, param_space={"x": tune.uniform(0, 1)}, tune_config=tune_config, run_config=run_config)
    begun = time.perf_counter()
    tuner.fit()
    print(json.dumps({"seconds": time.perf_counter() - begun}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
