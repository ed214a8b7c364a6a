"""Optuna's samplers, by ask and tell: TPE, Gaussian processes, CMA-ES, NSGA-II and every other one.

Akiba et al.: Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019; samplers of Optuna 5.

Two ways of asking, since samplers keep their state in two ways:

    OptunaHistorySampler   TPE, GP: all that they use is the history of trials. For each question, a study is made of
                           the trials as they are now, paused ones and those under way included, and a sampler with
                           a seed of its own. The answer follows from the seed, the number and the trials.
    OptunaSampler          CMA-ES, NSGA-II, QMC and others: they attach marks to the trials that they were asked for.
                           One study is kept, and told in order of numbers of trials that have ended. After a resume,
                           the questions are asked again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ropewalk.errors import SearchInvalid
from ropewalk.near_names import instead_of
from ropewalk.population.hyperparameters import Distribution
from ropewalk.search.name_streams import NameStreams, derived_seed
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space import SearchSpace

try:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    from ropewalk.search.samplers.optuna_trials import (
        TrialHistory,
        distributions_of,
        known_values,
        state_of,
        suggested_by,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"samplers of Optuna need {error.name}: pip install 'ropewalk[search]'", name=error.name
    ) from error

MakeSampler = Callable[[int], BaseSampler]
"""Makes a sampler of Optuna from a seed."""

_MOST_REJECTED = 100
"""Configurations of the sampler that the constraints may reject before one is drawn at random instead."""


@dataclass(frozen=True)
class _OfOptuna:
    """Makes a sampler of Optuna from a seed."""

    sampler: type[BaseSampler]
    options: Mapping[str, Any]

    def __call__(self, seed: int) -> BaseSampler:
        return cast("Callable[..., BaseSampler]", self.sampler)(seed=seed, **self.options)

    def __repr__(self) -> str:
        return f"{self.sampler.__name__}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"


class OptunaHistorySampler(Sampler):
    """Asks a sampler of Optuna that needs nothing but the history of trials.

    Args:
        make: makes the sampler from a seed; called for each trial.
    """

    def __init__(self, make: MakeSampler) -> None:
        self._make = make

    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        self._space, self._objectives, self._seed = space, objectives, seed
        self._history = TrialHistory(space, objectives)
        self._asking: dict[int, optuna.Trial] = {}
        with _checked():
            self._make(0)  # wrong options are found before anything starts

    def ask(self, number: int, trials: Sequence[Observed]) -> dict[str, Any]:
        study = self._study(number, trials)
        for _ in range(_MOST_REJECTED):
            trial = study.ask()
            values = self._space.chosen(partial(suggested_by, trial))
            if self._space.admits(values):
                return values
            study.tell(trial, state=TrialState.FAIL)
        return self._space.draw(NameStreams(self._seed, number))

    def suggest(self, number: int, name: str, distribution: Distribution, trials: Sequence[Observed]) -> Any:
        if number not in self._asking:
            others = [each for each in trials if each.number != number]
            self._asking[number] = self._study(number, others).ask()
        return suggested_by(self._asking[number], name, distribution)

    def tell(self, trial: Observed) -> None:
        self._asking.pop(trial.number, None)

    def _study(self, number: int, trials: Sequence[Observed]) -> optuna.Study:
        study = _new_study(partial(self._make, derived_seed(self._seed, number)), self._objectives)
        study.add_trials(self._history.trials(trials))
        return study


class OptunaSampler(Sampler):
    """Asks any sampler of Optuna, with one study for the whole search.

    Of trials that a scheduler pauses, it learns when they have ended; samplers with generations, such as CMA-ES and
    NSGA-II, are for searches whose trials run to their end.

    Args:
        make: makes the sampler from a seed; or a class of Optuna; or a sampler, whose own seed counts then.

    Example:
        >>> import optuna
        >>> sampler = OptunaSampler(lambda seed: optuna.samplers.CmaEsSampler(seed=seed, popsize=8))
    """

    def __init__(self, make: MakeSampler | type[BaseSampler] | BaseSampler) -> None:
        self._made_from = make

    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        distributions_of(space)  # refuses what Optuna does not have
        self._space, self._objectives, self._seed = space, objectives, seed
        with _checked():
            self._study = _new_study(self._make, objectives)
        self._asked: dict[int, optuna.Trial] = {}
        self._num_asked = 0
        self._has_ended: set[int] = set()

    def ask(self, number: int, trials: Sequence[Observed]) -> dict[str, Any]:
        self._follow(trials)
        return self._propose(number)

    def suggest(self, number: int, name: str, distribution: Distribution, trials: Sequence[Observed]) -> Any:
        if number not in self._asked:  # its function goes on after a resume, before another trial is asked for
            self._follow(trials)
        return suggested_by(self._asked[number], name, distribution)

    def _make(self) -> BaseSampler:
        made_from = self._made_from
        if isinstance(made_from, BaseSampler):
            return made_from
        if isinstance(made_from, type):
            return made_from(**_options(made_from, {"seed": self._seed}))
        return made_from(self._seed)

    def _propose(self, number: int) -> dict[str, Any]:
        for _ in range(_MOST_REJECTED):
            self._asked[number] = trial = self._study.ask()
            values = self._space.chosen(partial(suggested_by, trial))
            if self._space.admits(values):
                return values
            self._study.tell(trial, state=TrialState.FAIL)
        values = self._space.draw(NameStreams(self._seed, number))
        self._asked[number] = self._given(values, {})
        return values

    def _given(self, values: Mapping[str, Any], suggested: Mapping[str, Distribution]) -> optuna.Trial:
        """Ask for a trial with these values; the sampler marks it as one of its own."""
        self._study.enqueue_trial(dict(values))
        trial = self._study.ask()
        trial.relative_params.keys()  # Optuna 5 asks the sampler, which marks the trial, when this is read
        self._space.chosen(partial(suggested_by, trial))
        for name, distribution in suggested.items():
            suggested_by(trial, name, distribution)
        return trial

    def _follow(self, trials: Sequence[Observed]) -> None:
        """Ask for trials that this object does not know, and tell of those that have ended."""
        for each in sorted(trials, key=lambda each: each.number):
            if each.number in self._has_ended:
                continue
            if each.number not in self._asked:
                self._repeat(each)
            if not each.is_under_way:
                self._has_ended.add(each.number)
                self._tell(each, self._asked.pop(each.number))

    def _repeat(self, observed: Observed) -> None:
        """Ask for a trial as before the resume; if others are proposed now, or a person gave them, say its values."""
        values = self._propose(observed.number)
        trial = self._asked[observed.number]
        values |= {name: suggested_by(trial, name, each) for name, each in observed.suggested.items()}
        known = known_values(observed, self._space)
        if known is not None and any(values[name] != known.get(name) for name in trial.params):
            self._study.tell(trial, state=TrialState.FAIL)
            self._asked[observed.number] = self._given(known, observed.suggested)

    def _tell(self, observed: Observed, trial: optuna.Trial) -> None:
        state, values, intermediate = state_of(observed, self._objectives)
        if known_values(observed, self._space) is None:  # the space was changed since
            state = TrialState.FAIL
        if state == TrialState.PRUNED:
            for step, score in sorted(intermediate.items()):
                trial.report(score, step)
        self._study.tell(trial, values if state == TrialState.COMPLETE else None, state=state)


def tpe(**options: Any) -> OptunaHistorySampler:
    """Make a sampler of the tree-structured Parzen estimator, with options of Optuna's `TPESampler`.

    With several trials under way, it avoids their neighbourhood (`constant_liar=True`).
    """
    given = _options(optuna.samplers.TPESampler, {"constant_liar": True, **options})
    return OptunaHistorySampler(_OfOptuna(optuna.samplers.TPESampler, given))


def gp(**options: Any) -> OptunaHistorySampler:
    """Make a sampler of Gaussian processes, with options of Optuna's `GPSampler`. It learns from ended trials."""
    _need("gp", "torch", "torch")
    given = _options(optuna.samplers.GPSampler, {"warn_independent_sampling": False, **options})
    return OptunaHistorySampler(_OfOptuna(optuna.samplers.GPSampler, given))


def cmaes(**options: Any) -> OptunaSampler:
    """Make a sampler of CMA-ES, with options of Optuna's `CmaEsSampler`; categorical values are drawn at random."""
    _need("cmaes", "cmaes", "population")
    given = _options(optuna.samplers.CmaEsSampler, {"warn_independent_sampling": False, **options})
    return _OneObjective(_OfOptuna(optuna.samplers.CmaEsSampler, given))


def qmc(**options: Any) -> OptunaSampler:
    """Make a sampler of quasi-random sequences, with options of Optuna's `QMCSampler`; scrambled unless told else."""
    given = _options(optuna.samplers.QMCSampler, {"scramble": True, "warn_independent_sampling": False, **options})
    return OptunaSampler(_OfOptuna(optuna.samplers.QMCSampler, given))


def nsga2(**options: Any) -> OptunaSampler:
    """Make a sampler of NSGA-II, for several objectives, with options of Optuna's `NSGAIISampler`."""
    given = _options(optuna.samplers.NSGAIISampler, options)
    return OptunaSampler(_OfOptuna(optuna.samplers.NSGAIISampler, given))


def nsga3(**options: Any) -> OptunaSampler:
    """Make a sampler of NSGA-III, for several objectives, with options of Optuna's `NSGAIIISampler`."""
    given = _options(optuna.samplers.NSGAIIISampler, options)
    return OptunaSampler(_OfOptuna(optuna.samplers.NSGAIIISampler, given))


class _OneObjective(OptunaSampler):
    def begin(self, space: SearchSpace, objectives: int, seed: int) -> None:
        if objectives > 1:
            raise SearchInvalid(
                f"the search has {objectives} objectives, and CMA-ES takes one; use 'nsga2', 'nsga3', 'tpe' or 'gp'"
            )
        super().begin(space, objectives, seed)


def _new_study(make: Callable[[], BaseSampler], objectives: int) -> optuna.Study:
    with _quiet():
        return optuna.create_study(sampler=make(), directions=[StudyDirection.MAXIMIZE] * objectives)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Keep Optuna from logging each study, and from warning that a sampler is experimental."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.ERROR))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


@contextlib.contextmanager
def _checked() -> Generator[None]:
    try:
        with _quiet():
            yield
    except (TypeError, ValueError) as error:
        raise SearchInvalid(f"the sampler of Optuna cannot be made: {error}") from error


def _options(sampler: type[BaseSampler], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, without those of ours that this version of the sampler does not have.

    Raises:
        SearchInvalid: the sampler has no such option.
    """
    known = [name for name in inspect.signature(sampler.__init__).parameters if name not in ("self", "args", "kwargs")]
    ours = {"constant_liar", "scramble", "warn_independent_sampling", "seed"}
    for name in options:
        if name not in known and name not in ours:
            raise SearchInvalid(f"{sampler.__name__} has no option {name!r}{instead_of(name, known)}")
    return {name: value for name, value in options.items() if name in known}


def _need(sampler: str, package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise SearchInvalid(f"the sampler {sampler!r} needs {package}: pip install 'ropewalk[{extra}]'")
