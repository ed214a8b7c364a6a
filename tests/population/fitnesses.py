"""Fitness functions of the tests of whole runs: cheap, seeded, and some of them hostile."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial

Vector = NDArray[np.float32]


def noisy_sphere(x: Vector, trial: Trial) -> float:
    """Best at 1; a little noise from the trial, and a test without."""
    noise = 0.0 if trial.is_test else 0.01 * float(trial.rng.normal())
    return -float(np.sum((x - 1.0) ** 2)) + noise


def uneven(x: Vector, trial: Trial) -> float:
    """The same; some evaluations take twenty times as long as others."""
    time.sleep(0.02 if trial.seed % 10 == 0 else 0.001)
    return noisy_sphere(x, trial)


def wordy(x: Vector, trial: Trial) -> Outcome:
    """An outcome with all there can be."""
    for _ in range(3):
        trial.normalise(trial.rng.normal(2.0, 3.0, size=2))
    return Outcome(
        noisy_sphere(x, trial), behaviour=x[:2].astype(np.float64), steps=3, values={"length": float(trial.seed % 7)}
    )


def sometimes_raises(x: Vector, trial: Trial) -> float:
    """One in eight raises, always the same ones."""
    if trial.seed % 8 == 3:
        raise ArithmeticError(f"no fitness for seed {trial.seed}")
    return noisy_sphere(x, trial)


def sometimes_nan(x: Vector, trial: Trial) -> float:
    """One in eight is NaN."""
    return float("nan") if trial.seed % 8 == 3 else noisy_sphere(x, trial)


def always_raises(x: Vector, trial: Trial) -> float:
    """Nothing works."""
    raise ArithmeticError("nothing works")


def kills_its_worker(x: Vector, trial: Trial) -> float:
    """One in sixteen ends the process it runs in, each time it is tried."""
    if trial.seed % 16 == 5 and not trial.is_test:
        os.kill(os.getpid(), signal.SIGKILL)
    return noisy_sphere(x, trial)


def common(x: Vector, trial: Trial) -> float:
    """The same for all candidates of a generation."""
    return float(trial.common_seed)
