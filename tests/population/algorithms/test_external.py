"""Optimisers of other libraries: each takes the steps that it takes in its own loop, and goes on from a saved state.

What is not installed is skipped, with the line that installs it. What only `make lab` installs runs in `make test-lab`:
Nevergrad and EvoTorch take seconds to import.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropewalk.population.algorithm import Algorithm
from ropewalk.population.algorithms.external import Outside, adapt
from ropewalk.population.algorithms.map_elites import MAPElites
from ropewalk.population.archives.grid_archive import GridArchive
from ropewalk.population.evaluating import evaluate
from ropewalk.population.outcome import Outcome
from ropewalk.population.state_file import pack_state, unpack_state
from ropewalk.population.trial import Trial

GENERATIONS = 4


def needed(module: str, package: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, on import
        return pytest.importorskip(module, reason=f"runs {package}'s optimisers; pip install {package}")


def cost(x: Any) -> float:
    return float(np.sum((np.asarray(x, np.float64) - 1) ** 2))


def fitness(x: Any, trial: Trial) -> Outcome:
    _ = random.random(), np.random.random()  # as a fitness function may, which must not change the optimiser's course
    return Outcome(-cost(x), np.asarray(x, np.float64)[:2])


# --- each library: how it is made, and its own loop -------------------------------------------------------------------


class Ribs:
    @staticmethod
    def make() -> Any:
        needed("ribs", "ribs")
        from ribs.archives import GridArchive as Theirs
        from ribs.emitters import EvolutionStrategyEmitter, GaussianEmitter
        from ribs.schedulers import Scheduler

        archive = Theirs(solution_dim=3, dims=(10, 10), ranges=[(-2, 2), (-2, 2)], seed=0)
        return Scheduler(
            archive,
            [
                # Of its strategies the one of the package cma: numba compiles the others for 40 s.
                EvolutionStrategyEmitter(archive, x0=np.zeros(3), sigma0=0.5, batch_size=6, es="pycma_es", seed=1),
                GaussianEmitter(archive, sigma=0.2, x0=np.zeros(3), batch_size=4, seed=2),
            ],
        )

    @staticmethod
    def loop(optimiser: Any) -> None:
        for _ in range(GENERATIONS):
            x = optimiser.ask()
            optimiser.tell([-cost(each) for each in x], x[:, :2])

    @staticmethod
    def state(optimiser: Any) -> Any:
        data = optimiser.archive.data()
        return [data["index"], data["objective"], data["solution"]]


class Pycma:
    @staticmethod
    def make() -> Any:
        cma = needed("cma", "cma")
        return cma.CMAEvolutionStrategy([0.0] * 3, 0.5, {"seed": 7, "verbose": -9, "popsize": 6})

    @staticmethod
    def loop(optimiser: Any) -> None:
        for _ in range(GENERATIONS):
            x = optimiser.ask()
            optimiser.tell(x, [cost(each) for each in x])

    @staticmethod
    def state(optimiser: Any) -> Any:
        return [optimiser.mean, optimiser.sigma]


class Cmaes:
    @staticmethod
    def make() -> Any:
        return needed("cmaes", "cmaes").CMA(np.zeros(3), 0.5, seed=7, population_size=6)

    @staticmethod
    def loop(optimiser: Any) -> None:
        for _ in range(GENERATIONS):
            x = [optimiser.ask() for _ in range(6)]
            optimiser.tell([(each, cost(each)) for each in x])

    @staticmethod
    def state(optimiser: Any) -> Any:
        return [optimiser.mean, optimiser._sigma]


class WithMargin(Cmaes):
    @staticmethod
    def make() -> Any:
        cmaes = needed("cmaes", "cmaes")
        bounds = np.array([[-5, 5], [-5, 5], [-5, 5]])
        return cmaes.CMAwM(np.zeros(3), 0.5, bounds=bounds, steps=np.array([0, 0, 1]), seed=7, population_size=6)

    @staticmethod
    def loop(optimiser: Any) -> None:
        for _ in range(GENERATIONS):
            x = [optimiser.ask() for _ in range(6)]
            optimiser.tell([(raw, cost(each)) for each, raw in x])

    @staticmethod
    def state(optimiser: Any) -> Any:
        return [optimiser.mean]


class Nevergrad:
    population = 4

    @staticmethod
    def make() -> Any:
        nevergrad = needed("nevergrad", "nevergrad")
        optimiser = nevergrad.optimizers.TwoPointsDE(nevergrad.p.Array(shape=(3,)), budget=1000, num_workers=4)
        optimiser.parametrization.random_state = np.random.RandomState(5)
        return optimiser

    @staticmethod
    def loop(optimiser: Any) -> None:
        for _ in range(GENERATIONS):
            x = [optimiser.ask() for _ in range(4)]
            for each in x:
                optimiser.tell(each, cost(each.value))

    @staticmethod
    def state(optimiser: Any) -> Any:
        return [optimiser.provide_recommendation().value, optimiser.num_tell]


class Functional:
    population = 6

    @staticmethod
    def make() -> Any:
        functional = needed("evotorch.algorithms.functional", "evotorch")
        torch = needed("torch", "torch")
        torch.manual_seed(3)
        return functional.pgpe(
            center_init=torch.zeros(3), center_learning_rate=0.3, stdev_learning_rate=0.1, stdev_init=0.5,
            objective_sense="min",
        )  # fmt: skip

    @classmethod
    def loop(cls, optimiser: Any) -> Any:
        functional = needed("evotorch.algorithms.functional", "evotorch")
        for _ in range(GENERATIONS):
            x = functional.pgpe_ask(optimiser, popsize=6)
            optimiser = functional.pgpe_tell(optimiser, x, x.new_tensor([cost(each) for each in x]))
        return optimiser

    @staticmethod
    def state(optimiser: Any) -> Any:
        return [optimiser.optimizer_state.center, optimiser.stdev]


class Searcher:
    """With a generator of the problem's own, or torch's global one."""

    seed: int | None = 3
    name = "SNES"

    @classmethod
    def make(cls) -> Any:
        algorithms = needed("evotorch.algorithms", "evotorch")
        from evotorch import Problem
        from evotorch.operators import GaussianMutation, SimulatedBinaryCrossOver

        needed("torch", "torch").manual_seed(3)
        problem = Problem("min", cost, solution_length=3, initial_bounds=(-1, 1), seed=cls.seed)
        if cls.name == "SNES":
            return algorithms.SNES(problem, stdev_init=0.5, popsize=6)
        crossing = SimulatedBinaryCrossOver(problem, tournament_size=2, eta=8)
        return algorithms.GeneticAlgorithm(
            problem, popsize=6, operators=[crossing, GaussianMutation(problem, stdev=0.1)]
        )

    @staticmethod
    def loop(optimiser: Any) -> None:
        optimiser.run(GENERATIONS)

    @classmethod
    def state(cls, optimiser: Any) -> Any:
        return [optimiser.population.values, optimiser.population.evals]


class GeneticSearcher(Searcher):
    """Its first step evaluates twice: parents, then children."""

    seed = None
    name = "GeneticAlgorithm"


class Deap:
    @staticmethod
    def make() -> Any:
        cma = needed("deap.cma", "deap")
        from deap import base, creator

        classes: Any = creator
        if not hasattr(creator, "RopewalkLeast"):
            classes.create("RopewalkLeast", base.Fitness, weights=(-1.0,))
            classes.create("RopewalkPoint", list, fitness=classes.RopewalkLeast)
        np.random.seed(4)
        toolbox = base.Toolbox()
        strategy = cma.Strategy([0.0] * 3, 0.5, lambda_=6)
        toolbox.register("generate", strategy.generate, classes.RopewalkPoint)
        toolbox.register("update", strategy.update)
        return toolbox

    @staticmethod
    def loop(optimiser: Any) -> None:
        for _ in range(GENERATIONS):
            x = optimiser.generate()
            for each in x:
                each.fitness.values = (cost(each),)
            optimiser.update(x)

    @staticmethod
    def state(optimiser: Any) -> Any:
        strategy = optimiser.update.func.__self__
        return [strategy.centroid, strategy.sigma]


LIBRARIES: dict[str, Any] = {
    "pyribs": Ribs,
    "cma": Pycma,
    "cmaes": Cmaes,
    "cmaes with margin": WithMargin,
    "nevergrad": Nevergrad,
    "EvoTorch, functional": Functional,
    "EvoTorch, SNES": Searcher,
    "EvoTorch, genetic": GeneticSearcher,
    "DEAP": Deap,
}
WHOLE = [name for name in LIBRARIES if name != "nevergrad"]
OF_LAB = {"nevergrad", "EvoTorch, functional", "EvoTorch, SNES", "EvoTorch, genetic"}


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.lab] * (name in OF_LAB)) for name in names]


each_library = pytest.mark.parametrize("name", marked(LIBRARIES))
each_whole = pytest.mark.parametrize("name", marked(WHOLE))


def adapted(name: str) -> Outside:
    library = LIBRARIES[name]
    algorithm = adapt(library.make(), population=getattr(library, "population", None))
    assert isinstance(algorithm, Outside)
    return algorithm


def evaluated(algorithm: Algorithm[Any], candidates: Sequence[Any]) -> list[Outcome]:
    return [algorithm.evaluator()(fitness, candidate, Trial(0)) for candidate in candidates]


def run(algorithm: Outside, generations: int = GENERATIONS) -> None:
    """In generations, until as many are complete."""
    end = algorithm.generation + generations
    while algorithm.generation < end:
        candidates = algorithm.ask(algorithm.population)
        algorithm.tell(candidates, evaluated(algorithm, candidates))


def assert_equal(name: str, ours: Any, theirs: Any) -> None:
    state = LIBRARIES[name].state
    for one, other in zip(state(ours), state(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@contextlib.contextmanager
def same_chance() -> Any:
    states = random.getstate(), np.random.get_state()
    yield
    assert random.getstate() == states[0]
    assert all(map(np.array_equal, np.random.get_state(), states[1]))


@each_library
def test_it_takes_the_steps_of_its_own_loop(name: str) -> None:
    library = LIBRARIES[name]
    algorithm = adapted(name)
    while name == "EvoTorch, genetic" and algorithm.optimiser.step_count < GENERATIONS:  # its first step asks twice
        run(algorithm, 1)
    if algorithm.generation < GENERATIONS:
        run(algorithm)
    theirs = library.make()
    theirs = library.loop(theirs) or theirs
    assert_equal(name, algorithm.optimiser, theirs)
    incumbent = algorithm.incumbent()
    assert cost(incumbent) < 3  # that of where it began


@each_library
def test_a_restored_one_goes_on_with_the_same_bits(name: str) -> None:
    algorithm = adapted(name)
    run(algorithm, 2)
    candidates = algorithm.ask(algorithm.population - 1)  # in the middle of a population: one waits to be asked for
    outcomes = evaluated(algorithm, candidates)
    algorithm.tell(candidates[:2], outcomes[:2])
    state = unpack_state(pack_state(algorithm.state_dict()), "test")
    again = adapted(name)
    again.load_state_dict(state)
    np.random.seed(99)  # another process would be elsewhere
    for each in (algorithm, again):
        each.tell(candidates[2:], outcomes[2:])
        run(each, 3)
    assert_equal(name, again.optimiser, algorithm.optimiser)
    assert again.generation == algorithm.generation


@each_library
def test_the_rest_of_the_process_draws_as_if_it_were_not_there(name: str) -> None:
    algorithm = adapted(name)
    with same_chance():
        algorithm.tell(
            candidates := algorithm.ask(algorithm.population), [Outcome(-1.0, np.zeros(2))] * len(candidates)
        )


@each_whole
def test_a_whole_population_is_collected_whatever_the_order(name: str) -> None:
    algorithm, other = adapted(name), adapted(name)
    for _ in range(2):
        candidates = algorithm.ask(1) + algorithm.ask(100)
        assert algorithm.ask(1) == []
        outcomes = evaluated(algorithm, candidates)
        for at in reversed(range(len(candidates))):
            algorithm.tell([candidates[at]], [outcomes[at]])
    run(other, 2)
    assert_equal(name, algorithm.optimiser, other.optimiser)


@each_whole
def test_a_dropped_candidate_counts_as_the_worst_and_a_dropped_population_is_asked_again(name: str) -> None:
    algorithm = adapted(name)
    candidates = algorithm.ask(algorithm.population)
    outcomes = evaluated(algorithm, candidates)
    algorithm.tell(candidates[1:], outcomes[1:])
    assert algorithm.ask(5) == []
    algorithm.drop(candidates[:1])
    assert algorithm.generation == 1
    if name == "pyribs":
        told = [candidate[1].tolist() for candidate in candidates[1:]]
        assert all(solution in told for solution in algorithm.archive.data()["solution"].tolist())
    candidates = algorithm.ask(algorithm.population)
    algorithm.drop(candidates)
    again = algorithm.ask(algorithm.population)
    assert [number for number, _ in again] == [number for number, _ in candidates]
    algorithm.tell(again, evaluated(algorithm, again))
    assert algorithm.generation == 2


@pytest.mark.lab
def test_nevergrad_is_told_one_at_a_time_in_any_order() -> None:
    algorithm = adapted("nevergrad")
    under_way = algorithm.ask(4)
    for _ in range(300):
        candidate = under_way.pop(2)
        algorithm.tell([candidate], evaluated(algorithm, [candidate]))
        under_way += algorithm.ask(1)
    assert (algorithm.optimiser.num_tell, algorithm.generation) == (300, 75)
    algorithm.drop(under_way[:1])
    assert cost(algorithm.incumbent()) < 0.5
    under_way = under_way[1:]
    while asked := algorithm.ask(100):  # its budget is 1000
        under_way += asked
    assert (algorithm.optimiser.num_ask, algorithm.finished) == (1000, False)
    algorithm.tell(under_way, evaluated(algorithm, under_way))
    assert (algorithm.optimiser.num_tell, algorithm.finished) == (999, True), "one was dropped"


@pytest.mark.lab
def test_an_optimiser_that_asks_for_one_candidate_only_is_told_of_a_dropped_one() -> None:
    """It asked for nothing else before it was told, and the run ended: it had given nothing more."""
    nevergrad = needed("nevergrad", "nevergrad")
    optimiser = nevergrad.optimizers.registry["SPSA"](parametrization=nevergrad.p.Array(shape=(3,)), budget=30)
    assert optimiser.no_parallelization
    evaluated_so_far: list[float] = []

    def fails_at_times(x: Any) -> float:
        evaluated_so_far.append(-float(np.sum(x**2)))
        if len(evaluated_so_far) in (1, 5):
            raise OSError("no such environment")
        return evaluated_so_far[-1]

    run = evaluate(adapt(optimiser), fails_at_times, failures="drop")
    assert (run.evaluations, optimiser.num_tell) == (30, 30)


@pytest.mark.lab
def test_solutions_of_any_kind_reach_the_fitness_function() -> None:
    nevergrad = needed("nevergrad", "nevergrad")
    choice = nevergrad.p.Instrumentation(nevergrad.p.Choice(["a", "b"]), size=nevergrad.p.Scalar(lower=0, upper=1))
    algorithm = adapt(nevergrad.optimizers.RandomSearch(choice, budget=10), seed=1)
    seen: list[Any] = []
    candidates = unpack_state(pack_state(algorithm.ask(2)), "test")  # a checkpoint has them
    for candidate in candidates:
        algorithm.evaluator()(lambda x, trial: seen.append(x) or 1.0, candidate, Trial(0))
    assert all(args[0] in "ab" and 0 <= keywords["size"] <= 1 for args, keywords in seen)
    algorithm.tell(candidates, [Outcome(1.0), Outcome(2.0)])


def test_cma_solves_the_sphere() -> None:
    algorithm = adapted("cma")
    run(algorithm, 60)
    assert cost(algorithm.incumbent()) < 1e-6
    while not algorithm.finished:
        run(algorithm, 1)
    assert algorithm.generation < 200


# --- what is not known, and what is refused ---------------------------------------------------------------------------


class Halving:
    """Nobody's optimiser: half of the distance to the best, each time."""

    def __init__(self) -> None:
        self.centre, self.told = np.zeros(2), []

    def ask(self) -> list[np.ndarray]:
        return [self.centre + step for step in np.array([[1, 0], [-1, 0], [0, 1], [0, -1.0]])]

    def tell(self, solutions: list[np.ndarray], values: np.ndarray) -> None:
        self.told.append(values.tolist())
        self.centre = (self.centre + solutions[int(values.argmax())]) / 2


@pytest.mark.parametrize(("maximise", "sign"), [(True, 1), (False, -1)])
def test_any_other_optimiser_is_told_with_its_sign(maximise: bool, sign: int) -> None:
    algorithm = adapt(Halving(), maximise)
    assert algorithm.population == 4
    algorithm.tell(algorithm.ask(4), [Outcome(float(number)) for number in range(4)])
    assert isinstance(algorithm, Outside) and algorithm.optimiser.told == [[sign * number for number in range(4)]]


def test_infinite_fitness_is_told_as_a_large_number() -> None:
    algorithm = adapt(Halving(), True)
    algorithm.tell(algorithm.ask(4), [Outcome(-np.inf), Outcome(np.inf), Outcome(0.0), Outcome(0.0)])
    assert isinstance(algorithm, Outside) and algorithm.optimiser.told == [[-1e38, 1e38, 0, 0]]


def test_an_algorithm_is_left_as_it_is() -> None:
    algorithm = MAPElites(2, GridArchive((2,), [(0, 1)]))
    assert adapt(algorithm) is algorithm


def test_a_seed_decides_what_is_drawn_from_the_process_wide_generators() -> None:
    def first(seed: int | None) -> list[float]:
        return (
            adapt(SimpleNamespace(ask=lambda: [np.random.random(2)], tell=print), True, seed=seed).ask(1)[0][1].tolist()
        )

    assert first(1) == first(1) != first(2)
    assert first(None) == first(None)  # where the generators are now


def refusals() -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    def ribs_without_measures() -> None:
        algorithm = adapted("pyribs")
        algorithm.tell(algorithm.ask(10), [Outcome(1.0)] * 10)

    def told_twice() -> None:
        algorithm = adapt(Halving(), True)
        candidates = algorithm.ask(4)
        algorithm.tell([candidates[0]] * 2, [Outcome(1.0)] * 2)

    def population_of_deap() -> None:
        base = needed("deap.base", "deap")
        adapt(base.Toolbox())

    def other_state() -> None:
        adapt(Halving(), True).load_state_dict({"optimiser": "cmaes.CMA"})

    def unpicklable() -> None:
        optimiser = Halving()
        optimiser.told = (each for each in ())  # pyright: ignore[reportAttributeAccessIssue]
        adapt(optimiser, True).state_dict()

    return {
        "nothing that asks": (lambda: adapt(object()), TypeError, "which has no ask and tell"),
        "unknown sign": (lambda: adapt(Halving()), ValueError, r"say adapt\(..., maximise=...\)"),
        "another sign": (
            lambda: adapt(Cmaes.make(), True),
            ValueError,
            "cmaes's CMA minimises, so maximise must be False",
        ),
        "a population of its own": (lambda: adapt(Cmaes.make(), population=9), ValueError, "leave population=9 out"),
        "no population": (lambda: adapt(Functional.make()), ValueError, r"adapt\(state, population=...\)"),
        "no measures": (ribs_without_measures, ValueError, "no evaluation of this population said so"),
        "told twice": (told_twice, ValueError, "candidate 0 is not under way"),
        "a toolbox without generate": (population_of_deap, ValueError, r"toolbox.register\('map', pool.map\)"),
        "another's state": (other_state, ValueError, "the state is of cmaes.CMA, and this optimiser is"),
        "not picklable": (unpicklable, TypeError, "there is no checkpoint of it"),
    }


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.lab] * (what == "no population")) for what in refusals()]
)
def test_it_refuses(what: str) -> None:
    attempt, error, text = refusals()[what]
    with pytest.raises(error, match=text):
        attempt()
