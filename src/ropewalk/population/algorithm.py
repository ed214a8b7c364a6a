"""The one shape of population methods: ask for candidates, tell their outcomes.

    launcher                                                    worker
    ask(n) ─▶ candidates ── small: numbers, chains of seeds ──▶ evaluator(fitness, candidate, trial)
    evaluator() ─────────── large: parameters, once a host ──▶        │
    tell(candidates, outcomes) ◀──────── fitness ─────────────────────┘
      └─ map(f, blocks): what is heavy in it runs on the pool as well

An algorithm decides by its seed and by what it is told, in the order in which it is told, and by nothing else: that is
why a run can be repeated with other workers, resumed, and replayed from the log of its decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.observation_statistics import ObservationStatistics
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.trial import Trial

C = TypeVar("C")
"""What a candidate is, on its way to a worker."""

#: The user's function as an evaluator sees it: takes what the candidate stands for, and the trial.
Fitness = Callable[..., float | Outcome]


class Map(Protocol):
    """`[function(item) for item in items]`, perhaps on a pool; functions and items are picklable."""

    def __call__(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]: ...


def serial_map(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
    """The `Map` of an algorithm that no pool evaluates."""
    return [function(item) for item in items]


class Evaluator(Generic[C]):
    """How a worker evaluates a candidate: the half of an algorithm that is sent to the workers.

    It is pickled, sent to each host once for each object (return the same object while nothing in it changes), and
    mapped there read-only. This one hands the candidate itself to the fitness function.
    """

    observations: ObservationStatistics | None = None
    """For `Trial.normalise`, if the algorithm keeps them."""
    num_arguments = 1
    """How many arguments it gives to the fitness function before the trial."""
    is_test = False
    """Whether it tests what was learnt, and nothing is learnt from the outcome."""

    def __call__(self, fitness: Fitness, candidate: C, trial: Trial) -> Outcome:
        """Evaluate; the same for the same candidate and seed of the trial, in any process."""
        return outcome_of(fitness(candidate, trial))

    def test(self, fitness: Fitness, incumbent: Any, trial: Trial) -> Outcome:
        """Evaluate what `Algorithm.incumbent` returned."""
        return outcome_of(fitness(incumbent, trial))


class IncumbentEvaluator(Evaluator[int]):
    """Tests an incumbent, which is sent once; its candidates are numbers of episodes.

    Args:
        of: the evaluator that goes with it.
        incumbent: of the algorithm.
    """

    is_test = True

    def __init__(self, of: Evaluator[Any], incumbent: Any) -> None:
        self.observations = of.observations
        self._of = of
        self._incumbent = incumbent

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        incumbent: Any = self._incumbent
        if isinstance(incumbent, np.ndarray):  # one object for all episodes: none may change it for the next one
            view = cast("NDArray[Any]", incumbent).view()
            view.flags.writeable = False
            incumbent = view
        return self._of.test(fitness, incumbent, trial)


class Algorithm(ABC, Generic[C]):
    """A population method. See the module for who calls what.

    Subclasses call `super().__init__`, and keep everything that changes in `state_dict`.

    Args:
        population: how many candidates a generation has.
        seed: decides everything that is random here.
    """

    def __init__(self, population: int, seed: int) -> None:
        for name, value in (("population", population), ("seed", seed)):
            if not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be a whole number, not {value!r}")
        if population < 1:
            raise ValueError(f"population must be at least 1, not {population}")
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, not {seed}")
        self.population = population
        self.seed = seed
        self.generation: int = 0
        """Generations that are complete, counted by `tell`; without generations, all that was told by `population`."""
        self.map: Map = serial_map
        """Where heavy parts of `tell` run; `evaluate` puts the pool's map here while it runs."""

    @abstractmethod
    def ask(self, n: int) -> Sequence[C]:
        """Candidates to evaluate next: at most `n`; fewer, or none, if it has to be told of others first.

        Several asks may come before their candidates are told (steady state, stragglers). Where a generation has a
        size of its own (a second round for elites, a changing number of niches), `n` bounds nothing but steady state:
        `evaluate` asks for `population` and takes what it gets.
        """

    @abstractmethod
    def tell(self, candidates: Sequence[C], outcomes: Sequence[Outcome]) -> None:
        """Learn from some candidates that were asked before, in any grouping; candidates may be missing for good.

        Count `generation` up when one is complete: rows of the table, `generations=`, tests and checkpoints go by it.

        Args:
            candidates: as `ask` returned them (equal, perhaps not the same objects), oldest first.
            outcomes: theirs; the fitness of each is a number, never NaN.
        """

    def drop(self, candidates: Sequence[C]) -> None:
        """These will never be told: stragglers, or evaluations that failed. Called before the next `ask`."""

    def evaluator(self) -> Evaluator[C]:
        """How the candidates of the last `ask` are evaluated."""
        return _PLAIN

    def incumbent(self) -> Any:
        """What it would give you now: what the fitness function is called with in tests, and what `Run.best` is.

        None while there is nothing yet.
        """
        return None

    def figures(self) -> dict[str, float]:
        """Columns of its own for the table of the run, such as the step size."""
        return {}

    @property
    def finished(self) -> bool:
        """Whether it has nothing more to ask for, ever."""
        return False

    @property
    def can_finish(self) -> bool:
        """Whether it will finish by itself; by default, whether it says so at all."""
        return type(self).finished is not Algorithm.finished

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that changes, as numbers, strings, None, arrays, and lists and dicts (with string keys) of these.

        Candidates that were asked for and not told are under way in there: whoever resumes evaluates them again.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what `state_dict` was taken from; the constructor's arguments are those of that one.

        Raises:
            ValueError: the state is of another problem or algorithm; says which fact differs.
        """


_PLAIN: Evaluator[Any] = Evaluator()
