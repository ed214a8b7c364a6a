"""`Suggestions`: turns the `suggest_*` calls of one trial into values, as its function reaches them.

    trial's process                      launcher
    run.suggest_float("rate", ...) ───▶  Suggestions.suggest(name, distribution) ───▶ Sampler.suggest
                                   ◀───  value, kept in `values` and `distributions`

The calls have the names and arguments of Optuna's trials. `described_distribution` and `distribution_of` of
`space_text.py` carry a distribution between the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.fitting import fitted
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space_text import described_distribution

Suggest = Callable[[str, Any], Any]
"""Returns the value of a hyperparameter from its name and its distribution."""


def float_distribution(low: float, high: float, *, step: float | None = None, log: bool = False) -> Any:
    """Return the distribution of `suggest_float`.

    Raises:
        ValueError: the bounds or the step are wrong, or `step` and `log` are both given.
    """
    if log and step is not None:
        raise ValueError("suggest_float takes step= or log=True, not both")
    return LogUniform(low, high) if log else Uniform(low, high, step)


def int_distribution(low: int, high: int, *, step: int = 1, log: bool = False) -> Any:
    """Return the distribution of `suggest_int`.

    Raises:
        ValueError: the bounds or the step are wrong, or `log` is given with a step other than 1.
    """
    return Integers(low, high, step, log)


class Suggestions:
    """The hyperparameters of one trial that its function asks for by name.

    A value is drawn once: asking again for the same name returns it, and so does a trial that starts over from its
    first step. Values that are known from the beginning, such as those of the space or of a person's `--set`, are not
    drawn.

    Args:
        draw: draws a value that is not known; `functools.partial` of `Sampler.suggest` with number and trials.
        known: values by name that the trial has.
        distributions: distributions of those values that were suggested before, by name.

    Attributes:
        values: all values by name, in the order in which they became known.
        distributions: the distributions of those that were asked for.
    """

    def __init__(self, draw: Suggest, known: Mapping[str, Any], distributions: Mapping[str, Any] | None = None) -> None:
        self._draw = draw
        self.values: dict[str, Any] = dict(known)
        self.distributions: dict[str, Any] = dict(distributions or {})

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number between two bounds, both inclusive.

        Args:
            name: dotted name of the hyperparameter.
            low: lower bound.
            high: upper bound.
            step: distance between values, counted from `low`; None: any number.
            log: whether the logarithm is uniformly distributed.

        Raises:
            SearchInvalid: the arguments are wrong, differ from an earlier call with this name, or the known value is
                outside of the bounds.
        """
        return self.suggest(name, _valid(name, float_distribution, low, high, step=step, log=log))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return an integer between two bounds, both inclusive; arguments and errors are those of `suggest_float`."""
        return self.suggest(name, _valid(name, int_distribution, low, high, step=step, log=log))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of several values; errors are those of `suggest_float`.

        Args:
            name: dotted name of the hyperparameter.
            choices: numbers, texts, booleans or None.
        """
        return self.suggest(name, _valid(name, Choice, list(choices)))

    def suggest(self, name: str, distribution: Any) -> Any:
        """Return a value of a distribution.

        Raises:
            SearchInvalid: as `suggest_float`, or the sampler needs to know all hyperparameters before it begins.
        """
        if not name or not all(name.split(".")):
            raise SearchInvalid(f"{name!r} is not a name of a hyperparameter", parameter=name)
        before = self.distributions.setdefault(name, distribution)
        if before != distribution:
            raise SearchInvalid(
                f"a trial asks for {name} twice, first with {before} and then with {distribution}; use two names",
                parameter=name,
            )
        if name not in self.values:
            try:
                self.values[name] = self._draw(name, distribution)
            except Exception:
                del self.distributions[name]
                raise
        try:
            self.values[name] = fitted(distribution, self.values[name])  # a person may have given a text
        except ValueError as error:
            raise SearchInvalid(
                f"the value that was given for {name} cannot be used: {error}", parameter=name
            ) from None
        return self.values[name]

    def described(self, names: Iterable[str]) -> dict[str, Any]:
        """Return distributions that were asked for as data, by name."""
        return {name: described_distribution(self.distributions[name]) for name in names}


@dataclass(frozen=True, slots=True)
class Suggesting:
    """What chooses hyperparameters that a function asks for by `suggest_*`, in the process of the trial.

    Attributes:
        sampler: the sampler of the search.
        trials: what the search knew when the attempt began.
        known: all values of the trial by dotted name.
        distributions: distributions of those that it has asked for in earlier attempts, by name.
    """

    sampler: Sampler
    trials: tuple[Observed, ...]
    known: Mapping[str, Any]
    distributions: Mapping[str, Any]

    def suggestions(self, number: int) -> Suggestions:
        """Return the suggestions of a trial."""

        def draw(name: str, distribution: Any) -> Any:
            own = Observed(number, dict(made.values), None, 0.0, True, suggested=dict(made.distributions))
            trials = [own if each.number == number else each for each in self.trials]
            return self.sampler.suggest(number, name, distribution, trials)

        made = Suggestions(draw, self.known, self.distributions)
        return made


def _valid(name: str, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return make(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise SearchInvalid(f"suggestion of {name}: {error}", parameter=name) from None
