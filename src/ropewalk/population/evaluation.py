"""What runs in a worker: one evaluation, from a candidate to its outcome.

    (candidate, seed) ─▶ Trial ─▶ evaluator(fitness, candidate, trial) ─▶ Outcome ─▶ a float, if that is all there is

A plain float goes through the pool's page and in a batch of numbers; an `Outcome` that says more is pickled.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.pool.seeds import derive, task_seed
from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial
from ropewalk.transport.by_value import dumps_by_value

#: Apart from those of training: seeds of tests.
_TEST = 0x7E57


def seed_of_ask(seed: int, ask: int, *, is_test: bool = False) -> int:
    """The seed of all evaluations of one ask; that of each is `derive(this, position)`."""
    return derive(seed ^ _TEST if is_test else seed, ask)


def evaluate_one(evaluator: Evaluator[Any], fitness: Fitness, candidate: Any, seed: int) -> float | Outcome:
    """The outcome of a candidate; a float if it is nothing but a fitness.

    Raises:
        Exception: whatever the fitness function raises.
    """
    trial = Trial(seed, is_test=evaluator.is_test, observations=evaluator.observations)
    outcome = evaluator(fitness, candidate, trial)
    outcome.observations = trial.collected
    return outcome.fitness if outcome.is_plain else outcome


def evaluate_as_task(evaluator: Evaluator[Any], fitness: Fitness, candidate: Any) -> float | Outcome:
    """In a task of a pool whose map has the seed of the ask: the task's index is the candidate's position."""
    return evaluate_one(evaluator, fitness, candidate, task_seed())


def evaluate_numbered(
    evaluator: Evaluator[Any], fitness: Fitness, seed: int, numbered: tuple[int, Any]
) -> float | Outcome:
    """The same for candidates that come with their positions, because some of their ask are missing."""
    position, candidate = numbered
    return evaluate_one(evaluator, fitness, candidate, derive(seed, position))


def as_argument(candidates: Sequence[Any]) -> Sequence[Any]:
    """Candidates as tasks of a pool get them: private copies; numbers in a range need none."""
    return candidates if isinstance(candidates, range) else pickle.loads(dumps_by_value(candidates))  # noqa: S301


def as_constant(evaluator: Evaluator[Any]) -> Evaluator[Any]:
    """An evaluator as workers of a pool get it: a copy whose arrays are read-only."""
    buffers: list[pickle.PickleBuffer] = []
    data = dumps_by_value(evaluator, buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])  # noqa: S301


def taking_trial(fitness: Callable[..., Any], num_arguments: int) -> Fitness:
    """The user's function as evaluators call it: with what a candidate stands for, and the trial.

    Arrays that others use as well, such as parents that a worker keeps, become copies of its own: PyTorch cannot take
    read-only ones, and what one evaluation changes shall concern no other.

    The trial is left out if the function has no parameter for it: none after the first `num_arguments`, or one with a
    default that is not called `trial`.

    Raises:
        TypeError: it cannot be called so; says how it should look.
    """
    if not callable(fitness):
        raise TypeError(f"fitness must be a function, not {fitness!r:.80}")
    try:
        parameters = list(inspect.signature(fitness).parameters.values())
    except (ValueError, TypeError):
        return _Users(fitness, takes_trial=False)  # written in C: what is known of those is that they take no trial
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    required = [each for each in positional if each.default is each.empty]
    if len(required) > num_arguments + 1 or (len(positional) < num_arguments and not takes_any):
        what = "x" if num_arguments == 1 else ", ".join("xyz"[:num_arguments])
        name = getattr(fitness, "__name__", "fitness")
        raise TypeError(
            f"{name}{inspect.signature(fitness)} must take {num_arguments} or {num_arguments + 1} positional "
            f"arguments: {name}({what}) or {name}({what}, trial); use functools.partial for more"
        )
    after = positional[num_arguments] if len(positional) > num_arguments else None
    takes_trial = after is not None and (after.default is after.empty or after.name == "trial")
    return _Users(fitness, takes_trial=takes_trial)


class _Users:
    """A function of the user; see `taking_trial`."""

    def __init__(self, function: Callable[..., Any], *, takes_trial: bool) -> None:
        self._function = function
        self._takes_trial = takes_trial

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*map(own, arguments if self._takes_trial else arguments[:-1]))


def own(value: Any) -> Any:
    """An array that may be written to: this one, or a copy of it if it is read-only; anything else as it is."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return cast("NDArray[Any]", value).copy()
    return cast(Any, value)
