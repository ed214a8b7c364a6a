"""One evaluation in a worker, from a candidate to its outcome.

    (candidate, seed) ─▶ Trial ─▶ evaluator(fitness, candidate, trial) ─▶ Outcome ─▶ a float, if it is only a fitness

A float is sent through the pool's task page in a batch of numbers; an `Outcome` with more fields is pickled.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.pool.seeds import derive
from ropewalk.pool.worker import current_task
from ropewalk.population.algorithm import Evaluator, Fitness
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial
from ropewalk.transport.by_value import dumps_by_value

_TEST = 0x7E57
"""Separates the seeds of tests from the seeds of training."""


def seed_of_ask(seed: int, ask: int, *, is_test: bool = False) -> int:
    """Return the 64-bit seed of an ask; the seed of each evaluation is `derive(this, position)`."""
    return derive(seed ^ _TEST if is_test else seed, ask)


def evaluate_one(
    evaluator: Evaluator[Any], fitness: Fitness, candidate: Any, ask_seed: int, position: int
) -> float | Outcome:
    """Evaluate a candidate; returns its outcome, as a float if it is only a fitness.

    Args:
        evaluator: the evaluator of the algorithm.
        fitness: the user's function, as `taking_trial` returns it.
        candidate: the candidate.
        ask_seed: the 64-bit seed of the ask.
        position: the position of the candidate in the ask.

    Raises:
        Exception: any exception of the fitness function.
    """
    seed = derive(ask_seed, position)
    trial = Trial(seed, common=ask_seed, is_test=evaluator.is_test, observations=evaluator.observations)
    outcome = evaluator(fitness, candidate, trial)
    outcome.observations = trial.collected
    return outcome.fitness if outcome.is_plain else outcome


def evaluate_as_task(evaluator: Evaluator[Any], fitness: Fitness, candidate: Any) -> float | Outcome:
    """Evaluate in a task of a pool whose map has the seed of the ask: the index of the task is the position."""
    task = current_task()
    assert task is not None, "it is a task of a pool"
    return evaluate_one(evaluator, fitness, candidate, *task)


def evaluate_numbered(
    evaluator: Evaluator[Any], fitness: Fitness, seed: int, numbered: tuple[int, Any]
) -> float | Outcome:
    """Evaluate a (position, candidate) pair, for asks of which only some candidates are evaluated."""
    position, candidate = numbered
    return evaluate_one(evaluator, fitness, candidate, seed, position)


def as_argument(candidates: Sequence[Any]) -> Sequence[Any]:
    """Wrap candidates so that each task of a pool gets a private copy; a range of numbers needs none."""
    return candidates if isinstance(candidates, range) else pickle.loads(dumps_by_value(candidates))  # noqa: S301


def as_constant(evaluator: Evaluator[Any]) -> Evaluator[Any]:
    """Return a copy of an evaluator with read-only arrays, as the workers of a pool get it."""
    buffers: list[pickle.PickleBuffer] = []
    data = dumps_by_value(evaluator, buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])  # noqa: S301


def taking_trial(fitness: Callable[..., Any], num_arguments: int) -> Fitness:
    """Wrap the user's function so that evaluators can always call it with the value of a candidate and the trial.

    Shared arrays, such as parents that a worker keeps, are copied: PyTorch does not accept read-only arrays, and a
    change by one evaluation must not affect another.

    The trial is omitted if the function has no parameter for it: none after the first `num_arguments`, or only one
    with a default that is not called `trial`.

    Args:
        fitness: the user's function.
        num_arguments: number of arguments before the trial.

    Raises:
        TypeError: the function cannot be called with these arguments; the message shows a valid signature.
    """
    if not callable(fitness):
        raise TypeError(f"fitness must be a function, not {fitness!r:.80}")
    try:
        parameters = list(inspect.signature(fitness).parameters.values())
    except (ValueError, TypeError):
        return _Users(fitness, takes_trial=False)  # written in C without a signature; such functions take no trial
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
    """A function of the user, wrapped; see `taking_trial`."""

    def __init__(self, function: Callable[..., Any], *, takes_trial: bool) -> None:
        self._function = function
        self._takes_trial = takes_trial

    @property
    def __name__(self) -> str:
        """The name that the user knows."""
        function = getattr(self._function, "func", self._function)  # of functools.partial
        return str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*map(own, arguments if self._takes_trial else arguments[:-1]))


def own(value: Any) -> Any:
    """Return a writable array: the value itself, or a copy if it is read-only. Other values are returned unchanged."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return cast("NDArray[Any]", value).copy()
    return cast(Any, value)
