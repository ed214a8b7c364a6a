"""The interface of population methods: ask for candidates, tell their outcomes.

    launcher                                                    worker
    ask(n) ─▶ candidates ── small: numbers, chains of seeds ──▶ evaluator(fitness, candidate, trial)
    evaluator() ─────────── large: parameters, once a host ──▶        │
    tell(candidates, outcomes) ◀──────── fitness ─────────────────────┘
      └─ map(f, blocks): expensive parts of `tell` run on the pool, too

The decisions of an algorithm depend only on its seed and on the outcomes it is told, in the order in which it is told.
Therefore a run can be repeated with other workers, resumed, and replayed from the log of its decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.argument_kinds import check_number
from ropewalk.population.observation_statistics import ObservationStatistics
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.trial import Trial

C = TypeVar("C")
"""The type of a candidate as it is sent to a worker."""

Fitness = Callable[..., float | Outcome]
"""The user's function as an evaluator calls it: with the value that the candidate stands for, and the trial."""


class Map(Protocol):
    """`[function(item) for item in items]`, possibly on a pool; functions and items must be picklable."""

    def __call__(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]: ...


Panel = Callable[[int], dict[str, Any]]
"""Makes the data of a picture from the cursor of its last data, or 0: plain dicts, lists, strings, numbers and None.

See `ropewalk.control.view.Observable.view`.
"""


def serial_map(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
    """Run the items one after the other: the `Map` of an algorithm without a pool."""
    return [function(item) for item in items]


def ignored(kind: str, text: str, /) -> None:
    """Take note of an event of an algorithm that nobody looks at: do nothing."""


class Evaluator(Generic[C]):
    """Evaluates a candidate in a worker: the part of an algorithm that is sent to the workers.

    An evaluator is pickled, sent to each host once per object (return the same object while nothing in it changes), and
    mapped there read-only. This class passes the candidate itself to the fitness function.
    """

    observations: ObservationStatistics | None = None
    """Statistics for `Trial.normalise`; None if the algorithm keeps none."""
    num_arguments = 1
    """Number of arguments of the fitness function before the trial."""
    is_test = False
    """Whether the evaluation is a test, from whose outcome nothing is learnt."""

    def __call__(self, fitness: Fitness, candidate: C, trial: Trial) -> Outcome:
        """Evaluate a candidate; the result is the same for the same candidate and trial seed, in any process.

        Args:
            fitness: the user's function.
            candidate: the candidate, as `Algorithm.ask` returned it.
            trial: the seed and the observation statistics of this evaluation.
        """
        return outcome_of(fitness(candidate, trial))

    def test(self, fitness: Fitness, incumbent: Any, trial: Trial) -> Outcome:
        """Evaluate the value that `Algorithm.incumbent` returned.

        Args:
            fitness: the user's function.
            incumbent: the value.
            trial: the seed and the observation statistics of this episode.
        """
        return outcome_of(fitness(incumbent, trial))


class IncumbentEvaluator(Evaluator[int]):
    """Tests an incumbent, which is sent once; the candidates are episode numbers.

    Args:
        of: the evaluator of the algorithm.
        incumbent: the incumbent of the algorithm.
    """

    is_test = True

    def __init__(self, of: Evaluator[Any], incumbent: Any) -> None:
        self.observations = of.observations
        self._of = of
        self._incumbent = incumbent

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        incumbent: Any = self._incumbent
        if isinstance(incumbent, np.ndarray):  # all episodes share the array, so no episode may change it
            view = cast("NDArray[Any]", incumbent).view()
            view.flags.writeable = False
            incumbent = view
        return self._of.test(fitness, incumbent, trial)


class Algorithm(ABC, Generic[C]):
    """The base class of population methods: asked for candidates, told their outcomes.

    The launcher calls `ask` and `evaluator`; workers call the evaluator with each candidate; the launcher calls `tell`
    with what came back, in pieces or as a whole, and `drop` with what never will. Decisions follow from the seed and
    the outcomes told, in the order in which they are told: so a run can be repeated, resumed and replayed.

    Subclasses call `super().__init__`, and return all mutable state from `state_dict`.

    Args:
        population: number of candidates in a generation.
        seed: seed of all random decisions.
    """

    def __init__(self, population: int, seed: int) -> None:
        check_number("population", population, Integral, "a whole number", least=1, required=True)
        check_number("seed", seed, Integral, "a whole number", least=0, required=True)
        self.population = population
        self.seed = seed
        self.generation: int = 0
        """Number of complete generations, counted by `tell`; without generations, the number told over `population`."""
        self.map: Map = serial_map
        """Runs expensive parts of `tell`; `evaluate` sets it to the map of the pool while it runs."""
        self.happened: Callable[[str, str], object] = ignored
        """Is called with the kind, as in `EventView`, and the text of what belongs on a time line; see `map`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} population={self.population} seed={self.seed} generation={self.generation}>"

    @abstractmethod
    def ask(self, n: int) -> Sequence[C]:
        """Return the candidates to evaluate next: at most `n`, and fewer or none if others have to be told first.

        Several asks may come before their candidates are told (steady state, stragglers). If generations vary in size
        (a second round for elites, a changing number of niches), `n` is a limit in steady state only: `evaluate` asks
        for `population` and accepts any number.
        """

    @abstractmethod
    def tell(self, candidates: Sequence[C], outcomes: Sequence[Outcome]) -> None:
        """Learn from some candidates of earlier asks, in any grouping; some candidates may never be told.

        Increment `generation` when a generation is complete: rows of the table, `generations=`, tests and checkpoints
        depend on it.

        Args:
            candidates: candidates as `ask` returned them (equal, but possibly not the same objects), oldest first.
            outcomes: their outcomes, in the same order; no fitness is NaN.
        """

    def drop(self, candidates: Sequence[C]) -> None:
        """Note that these candidates will never be told: stragglers, or failed evaluations.

        It is called before the next `ask`.
        """

    def evaluator(self) -> Evaluator[C]:
        """Return the evaluator for the candidates of the last `ask`."""
        return _PLAIN

    def incumbent(self) -> Any:
        """Return the current best solution, which tests evaluate and `RunResult.best` holds; None if there is none."""
        return None

    def figures(self) -> dict[str, float]:
        """Return additional columns for the table of the run, such as the step size."""
        return {}

    def panels(self) -> Mapping[str, Panel]:
        """Return what makes the data of the algorithm's pictures, by name of the panel.

        It is called when a run begins. The panels are called from other threads, but never during a call of `ask`,
        `tell` or `drop`.
        """
        return {}

    @property
    def progress(self) -> float | None:
        """The share of its work that is done, 0 to 1; None if it has no end of its own."""
        return None

    @property
    def finished(self) -> bool:
        """Whether the algorithm will never ask for another candidate."""
        return False

    @property
    def can_finish(self) -> bool:
        """Whether the algorithm will finish by itself; by default, whether it overrides `finished`."""
        return type(self).finished is not Algorithm.finished

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all mutable state: numbers, strings, None, arrays, and lists and dicts (with string keys) of these.

        It includes candidates that were asked for and not told yet; a resumed run evaluates them again.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; both algorithms must have the same constructor arguments.

        Raises:
            ValueError: the state belongs to another problem or algorithm; the message names the difference.
        """


_PLAIN: Evaluator[Any] = Evaluator()
