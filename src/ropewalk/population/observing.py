"""`evaluate(track=...)`: the run that keeps what a population method reports."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ropewalk.population.algorithm import Algorithm
from ropewalk.tracking.observed_run import ObservedRun, Track, observed


def observe(
    track: Track, method: Algorithm[Any], seed: int, options: Mapping[str, object], *, can_pause: bool
) -> ObservedRun:
    """Begin the run of a population method.

    Args:
        track: as for `evaluate`.
        method: the algorithm; its settings are those of the run.
        seed: seed of the evaluations.
        options: further settings.
        can_pause: whether checkpoints are written, from which it can go on.
    """
    if not track:
        return ObservedRun(None)  # one of its own, since it may be asked to stop
    settings = {name: value for name, value in vars(method).items() if _is_setting(name, value)}
    config = {"algorithm": type(method).__name__, **settings, **options}
    return observed(
        track, "population", type(method).__name__.lower(), config, seed=seed, take=partial(take, can_pause=can_pause)
    )


def take(watched: ObservedRun, action: str, *, can_pause: bool) -> tuple[bool, str]:
    """Take a request; returns whether that can be done, and what it leads to.

    Args:
        watched: the run of the method.
        action: "pause" or "stop".
        can_pause: as for `observe`.
    """
    if action == "pause" and not can_pause:
        return False, "it writes no checkpoints, so it cannot pause; evaluate(..., checkpoint=folder) writes them"
    watched.ask(action)
    when = "with its next checkpoint" if action == "pause" else "after the generation in which it is"
    return True, f"it {action}s {when}"


def _is_setting(name: str, value: object) -> bool:
    return not name.startswith("_") and name != "generation" and isinstance(value, bool | int | float | str)
