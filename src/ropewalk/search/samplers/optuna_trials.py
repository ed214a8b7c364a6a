"""Trials and distributions as Optuna has them.

What Optuna calls a pruned trial is here one whose score belongs to a smaller budget: the scheduler has stopped it, or
it waits at a rung. Optuna's TPE ranks such trials after complete ones, by step and then by score, so that a search that
promotes few trials still learns from all of them.
"""

from __future__ import annotations

import copy
import datetime
import math
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.fitting import fitted
from ropewalk.search.samplers.sampler import Observed
from ropewalk.search.space import SearchSpace

_LONG_AGO = datetime.datetime(2000, 1, 1)  # Optuna's times have no zone, and nothing reads this one


class SharedTrial(FrozenTrial):
    """A finished or running trial of a study, which the study does not have to copy deeply.

    Copying 1,000 trials of 7 hyperparameters deeply took 86 ms, and this 12 ms; a study is made for each question.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedTrial:
        return copy.copy(self)


class TrialHistory:
    """Turns observed trials into Optuna's, and keeps those that have not changed.

    Args:
        space: the space.
        objectives: number of objectives.
    """

    def __init__(self, space: SearchSpace, objectives: int) -> None:
        self._space, self._objectives = space, objectives
        self._distributions = distributions_of(space)
        self._kept: dict[int, tuple[Observed, SharedTrial]] = {}

    def trials(self, observed: Sequence[Observed]) -> list[SharedTrial]:
        """Return the trials in order of their numbers."""
        return [self._trial(each) for each in sorted(observed, key=lambda each: each.number)]

    def _trial(self, observed: Observed) -> SharedTrial:
        before = self._kept.get(observed.number)
        if before is None or before[0] != observed:
            before = observed, self._converted(observed)
            self._kept[observed.number] = before
        return before[1]

    def _converted(self, observed: Observed) -> SharedTrial:
        state, values, intermediate = state_of(observed, self._objectives)
        known = known_values(observed, self._space)
        if known is None:
            state, values, intermediate, known = TrialState.FAIL, None, {}, {}
        distributions = self._distributions | {
            name: optuna_distribution(each, name) for name, each in observed.suggested.items()
        }
        return SharedTrial(
            number=-1,  # the study numbers it
            trial_id=-1,
            state=state,
            value=None,
            values=values,
            datetime_start=_LONG_AGO,
            datetime_complete=_LONG_AGO if state.is_finished() else None,
            params=known,
            distributions={name: distributions[name] for name in known},
            user_attrs={},
            system_attrs={},
            intermediate_values=intermediate,
        )


def state_of(observed: Observed, objectives: int) -> tuple[TrialState, list[float] | None, dict[int, float]]:
    """Return the state that a trial has for Optuna, its values and its intermediate values."""
    if observed.scores is None or observed.has_failed:
        running = observed.is_under_way and not observed.has_failed
        return TrialState.RUNNING if running else TrialState.FAIL, None, {}
    if objectives > 1:  # Optuna has no intermediate values for several objectives
        if observed.is_under_way:
            return TrialState.RUNNING, None, {}
        return TrialState.COMPLETE, list(observed.scores), {}
    intermediate = {int(step): score for step, score in observed.intermediate.items() if not math.isnan(score)}
    intermediate.setdefault(int(observed.step), observed.scores[0])
    if observed.is_under_way or observed.was_stopped:
        return TrialState.PRUNED, [intermediate[max(intermediate)]], intermediate
    return TrialState.COMPLETE, list(observed.scores), intermediate


def known_values(observed: Observed, space: SearchSpace) -> dict[str, Any] | None:
    """Return the values of a trial that Optuna knows of: those that are no constants.

    Returns:
        Values by name; None if one is not in its distribution any more, because the space was changed.
    """
    found: dict[str, Any] = {}
    for name, value in observed.hyperparameters.items():
        parameter = space.parameters.get(name)
        if parameter is not None and parameter.is_constant:
            continue
        distribution = observed.suggested.get(name) if parameter is None else parameter.distribution
        if distribution is None:
            continue
        try:
            found[name] = fitted(distribution, value)
        except ValueError:
            return None
    return found


def distributions_of(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions by name.

    Raises:
        SearchInvalid: one is of a class that Optuna does not have.
    """
    return {
        each.name: optuna_distribution(each.distribution, each.name)
        for each in space.parameters.values()
        if not each.is_constant
    }


def optuna_distribution(distribution: Any, name: str) -> BaseDistribution:
    """Return Optuna's form of a distribution.

    Raises:
        SearchInvalid: Optuna has none like it.
    """
    match distribution:
        case Uniform(low=low, high=high, step=step):
            return FloatDistribution(low, high if step is None else distribution.at(1), step=step)
        case LogUniform(low=low, high=high):
            return FloatDistribution(low, high, log=True)
        case Integers(low=low, step=step, log=log):
            return IntDistribution(low, distribution.at(1), log=log, step=step)
        case Choice(values=values):
            return CategoricalDistribution(list(values))
        case _:
            raise SearchInvalid(
                f"{name} is of a class that Optuna does not have, {distribution!r}; use the sampler 'random'",
                parameter=name,
            )


def suggested_by(trial: optuna.Trial, name: str, distribution: Any) -> Any:
    """Return the value that a trial of Optuna suggests."""
    match distribution:
        case Uniform(low=low, high=high, step=step):
            high = high if step is None else distribution.at(1)
            return distribution.nearest(trial.suggest_float(name, low, high, step=step))
        case LogUniform(low=low, high=high):
            return distribution.nearest(trial.suggest_float(name, low, high, log=True))
        case Integers(low=low, step=step, log=log):
            return distribution.nearest(trial.suggest_int(name, low, distribution.at(1), step=step, log=log))
        case _:
            return trial.suggest_categorical(name, list(distribution.values))
