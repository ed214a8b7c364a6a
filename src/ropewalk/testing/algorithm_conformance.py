"""The conformance suite of population methods.

    class TestMine(AlgorithmConformance):          # pytest runs its methods; pytest is not needed to import this
        def make_algorithm(self) -> Algorithm:
            return Mine(population=8, seed=1)

The law is that of `ropewalk.population.Algorithm`: the seed and the outcomes told, in their order, decide everything.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ropewalk.population.algorithm import Algorithm
from ropewalk.population.evaluating import evaluate
from ropewalk.population.outcome import Outcome, outcome_of
from ropewalk.population.pacing.modes import ModeName
from ropewalk.population.rows import RESERVED
from ropewalk.population.run_result import RunResult
from ropewalk.population.state_file import pack_state, unpack_state
from ropewalk.population.trial import Trial
from ropewalk.testing.conformance_suite import ConformanceSuite


class AlgorithmConformance(ConformanceSuite):
    """The suite: subclass it, override `make_algorithm`, and run it by pytest or with the tests of `all_tests()`."""

    generations: int = 3
    """The number of generations of a run."""
    modes: tuple[ModeName, ...] = ("generation", "steady")
    """The modes that the algorithm supports."""
    takes_pieces: bool = True
    """Whether the result is the same, up to rounding, if a generation is told in several pieces, in order."""

    def make_algorithm(self) -> Algorithm[Any]:
        """Make a small algorithm, the same each time."""
        raise NotImplementedError("say how your algorithm is made: override make_algorithm()")

    def fitness(self, *arguments: Any) -> float | Outcome:
        """Return the fitness of a candidate; the last argument is the trial. By default, values near 1 are best."""
        x, trial = np.asarray(arguments[0], np.float64), arguments[-1]
        return Outcome(-float(np.sum((x - 1) ** 2)) + 0.01 * float(trial.rng.normal()), behaviour=x[:2])

    def make_again(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """Make the same algorithm as in another process; override it if the algorithm keeps data in files."""
        return self.make_algorithm()

    def state_of(self, algorithm: Algorithm[Any]) -> bytes:
        """Return the state that equal runs share; override it if `state_dict` names paths or other local facts."""
        return pack_state(algorithm.state_dict())

    def test_a_run_follows_from_its_seed_on_any_pool(self) -> None:
        """A generation does not depend on the order in which evaluations end."""
        here = self._run()
        told = here.algorithm.generation
        assert told >= self.generations, (
            f"{told} generations after {here.evaluations} evaluations: does tell count them?"
        )
        with ThreadPoolExecutor(3) as threads:
            self._assert_same(self._run(pool=threads), here)

    def test_a_log_is_repeated(self) -> None:
        """This holds in every mode; in steady state the log has the order in which evaluations ended."""
        for mode in self.modes:
            with ThreadPoolExecutor(3) as threads:
                run = self._run(pool=threads, mode=mode)
            algorithm = self.make_algorithm()
            self._assert_same(evaluate(algorithm, self._fitness(algorithm), replay=run.decisions), run)

    def test_it_goes_on_from_its_state(self) -> None:
        """The state is saved between generations, and loaded from a file into a new object."""
        one = self.make_algorithm()
        self._generation(one, 0)
        state = unpack_state(pack_state(one.state_dict()), "the state")
        again = self.make_again(one)
        again.load_state_dict(state)
        for number in range(1, self.generations):
            if one.finished:
                break
            went_on, resumed = self._generation(one, number), self._generation(again, number)
            assert went_on == resumed, (
                f"after load_state_dict, generation {number} has the fitnesses {resumed}, and {went_on} without it; is "
                "anything missing in state_dict, such as the state of a generator?"
            )
        assert self.state_of(one) == self.state_of(again), "after load_state_dict, the state becomes another one"
        assert one.figures() == again.figures(), f"after load_state_dict, figures() is {again.figures()}"
        assert one.generation == again.generation, f"after load_state_dict, generation is {again.generation}"

    def test_candidates_and_evaluators_travel(self) -> None:
        """Pickled candidates and evaluators give the same outcome, and evaluation does not change the algorithm."""
        algorithm = self.make_algorithm()
        candidates, evaluator = list(algorithm.ask(algorithm.population)), algorithm.evaluator()
        before = self.state_of(algorithm)
        sent = pickle.loads(pickle.dumps((evaluator, candidates)))  # noqa: S301  # our own bytes
        for number, (candidate, copy) in enumerate(zip(candidates, sent[1], strict=True)):
            here = evaluator(self._fitness(algorithm), candidate, Trial(number))
            there = sent[0](self._fitness(algorithm), copy, Trial(number))
            assert here.fitness == there.fitness, (
                f"candidate {number} is worth {here.fitness}, and {there.fitness} there"
            )
        assert self.state_of(algorithm) == before, "evaluating a candidate has changed the algorithm"

    def test_pieces_are_as_good_as_a_whole(self) -> None:
        """A generation may be told one outcome at a time, in order."""
        if not self.takes_pieces:
            return
        whole, pieces = self.make_algorithm(), self.make_algorithm()
        for number in range(self.generations):
            if whole.finished:
                break
            self._generation(whole, number)
            told = self._evaluated(pieces, number)
            for candidate, outcome in told:
                pieces.tell([candidate], [outcome])
        assert self.state_of(whole) == self.state_of(pieces), (
            "a generation that is told one outcome at a time leads to another state than one told as a whole; "
            "set takes_pieces = False if that is meant"
        )

    def test_candidates_may_be_missing_for_good(self) -> None:
        """One candidate in four is dropped, as a straggler or a failed evaluation, and the run continues."""
        algorithm = self.make_algorithm()
        for number in itertools.count():
            if algorithm.finished or algorithm.generation >= self.generations:
                break
            assert number < 20 * self.generations, f"{algorithm.generation} generations after {number} asks"
            told = self._evaluated(algorithm, number)
            algorithm.drop([candidate for at, (candidate, _) in enumerate(told) if at % 4 == 1])
            kept = [each for at, each in enumerate(told) if at % 4 != 1]
            algorithm.tell([candidate for candidate, _ in kept], [outcome for _, outcome in kept])

    def test_figures_are_numbers(self) -> None:
        """Figures become columns of a table, and do not use names of existing columns."""
        run = self._run()
        for name, value in run.algorithm.figures().items():
            assert isinstance(value, int | float), f"{name} is {value!r}"
            assert name not in RESERVED, f"{name} is a column of every run"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _fitness(self, algorithm: Algorithm[Any]) -> Any:
        """Return a fitness function for `evaluate`, with the evaluator's number of arguments, and the trial."""

        def of_one(x: Any, trial: Trial) -> float | Outcome:
            return self.fitness(x, trial)

        def of_two(x: Any, y: Any, trial: Trial) -> float | Outcome:
            return self.fitness(x, y, trial)

        return of_two if algorithm.evaluator().num_arguments == 2 else of_one

    def _run(self, **options: Any) -> RunResult[Any]:
        algorithm = self.make_algorithm()
        return evaluate(algorithm, self._fitness(algorithm), generations=self.generations, **options)

    def _evaluated(self, algorithm: Algorithm[Any], number: int) -> list[tuple[Any, Outcome]]:
        candidates, evaluator = algorithm.ask(algorithm.population), algorithm.evaluator()
        told: list[tuple[Any, Outcome]] = []
        for position, candidate in enumerate(candidates):
            trial = Trial(1000 * number + position, observations=evaluator.observations)
            outcome = outcome_of(evaluator(self._fitness(algorithm), candidate, trial))
            outcome.observations = trial.collected
            told.append((candidate, outcome))
        return told

    def _generation(self, algorithm: Algorithm[Any], number: int) -> Sequence[float]:
        told = self._evaluated(algorithm, number)
        algorithm.tell([candidate for candidate, _ in told], [outcome for _, outcome in told])
        return [outcome.fitness for _, outcome in told]

    def _assert_same(self, one: RunResult[Any], other: RunResult[Any]) -> None:
        assert self.state_of(one.algorithm) == self.state_of(other.algorithm), (
            "the same outcomes, told in the same order, have led to different states: what else decides?"
        )
        assert one.evaluations == other.evaluations, f"{one.evaluations} evaluations, then {other.evaluations}"
