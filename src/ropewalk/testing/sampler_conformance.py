"""The conformance suite of samplers of searches.

    class TestMine(SamplerConformance):            # pytest runs its methods; pytest is not needed to import this
        def make_sampler(self) -> Sampler:
            return Mine()

The laws are those of `ropewalk.search.Sampler`: configurations belong to the space, and the seed, the number of a trial
and the trials that the search knows decide which one is next, also after a resume.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.conditions import When
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space import SearchSpace
from ropewalk.testing.conformance_suite import ConformanceSuite


class SamplerConformance(ConformanceSuite):
    """The suite: subclass it, override `make_sampler`, and run it by pytest or with the tests of `all_tests()`."""

    trials: int = 16
    """The number of trials of a search."""
    depends_on_seed: bool = True
    """Whether another seed gives another sequence; a grid has none."""
    suggests: bool = True
    """Whether it draws hyperparameters that trials ask for by name."""
    most_objectives: int = 2
    """The number of objectives that it can be begun with: 1, or 2 for any number."""

    def make_sampler(self) -> Sampler:
        """Make a sampler, the same each time."""
        raise NotImplementedError("say how your sampler is made: override make_sampler()")

    def space(self) -> SearchSpace:
        """Return the space, which has nested and conditional hyperparameters, a constant and a constraint.

        Override it if the sampler cannot sample one of them.
        """
        return SearchSpace(
            {
                "rate": LogUniform(1e-5, 1e-1),
                "dropout": Uniform(0.0, 0.5, 0.1),
                "model": {"layers": Integers(1, 4), "width": Integers(8, 64, log=True)},
                "optimizer": Choice(["adam", "sgd"]),
                "momentum": When({"optimizer": "sgd"}, Uniform(0.0, 0.99)),
                "nesterov": When({"optimizer": "sgd"}, Choice([True, False])),
                "batch": 32,
            },
            ["model.layers * model.width <= 160"],
        )

    def scores(self, values: Mapping[str, Any], objectives: int) -> tuple[float, ...]:
        """Return the scores of a configuration, to be maximised; they depend on nothing else."""
        numbers = [float(value) for value in values.values() if isinstance(value, int | float)]
        return (-abs(sum(numbers) - 50), -sum(number**2 for number in numbers))[:objectives]

    def test_one_seed_gives_one_sequence(self) -> None:
        """With one trial at a time, the seed decides everything."""
        first, again, other = self._searched(seed=1), self._searched(seed=1), self._searched(seed=2)
        assert first and first == again
        assert not self.depends_on_seed or first != other

    def test_configurations_belong_to_the_space(self) -> None:
        """They have exactly the active hyperparameters, constants included, and satisfy the constraints."""
        space = self.space()
        for values in self._values(self._searched()):
            assert space.validate(values) == values, f"{values} is not complete"
            for name, value in values.items():
                assert type(value) in (int, float, str, bool, type(None)), f"{name} is {value!r}"
            assert space.admits(values)

    def test_conditional_hyperparameters_are_there_if_they_are_active(self) -> None:
        """Both cases occur in a search."""
        found = self._values(self._searched())
        for each in self.space().parameters.values():
            cases = {(each.name in values, each.is_active(values)) for values in found}
            expected = {(True, True), (False, False)} if each.conditions else {(True, True)}
            assert cases == expected, f"{each.name} is there or not, and active or not: {cases}"

    def test_several_trials_are_under_way(self) -> None:
        """Four are asked for before the first one ends, and they end in another order; nothing is asked for twice."""
        space, sampler = self.space(), self._begun()
        known: list[Observed] = []
        for number in range(self.trials):
            known.append(self._asked(sampler, number, known))
            assert space.admits(known[-1].hyperparameters)
            if number % 4 == 3:
                for index in (number - 1, number - 3, number, number - 2):
                    self._end(sampler, known, index)

    def test_trials_may_fail_or_pause_or_be_stopped(self) -> None:
        """One in four fails, one waits at a rung, one is stopped at it and one ends; one never reports."""
        space, sampler = self.space(), self._begun()
        known: list[Observed] = []
        for number in range(self.trials):
            known.append(self._asked(sampler, number, known))
            assert space.admits(known[-1].hyperparameters)
            scores = self.scores(known[-1].hyperparameters, 1)
            changes: dict[str, Any] = {
                "scores": scores,
                "step": 2.0,
                "intermediate": {1.0: scores[0] - 1, 2.0: scores[0]},
            }
            if number % 4 == 0:
                known[-1] = replace(known[-1], is_under_way=False, has_failed=True)
            elif number % 4 == 1:
                known[-1] = replace(known[-1], **changes)
            else:
                known[-1] = replace(known[-1], **changes, is_under_way=False, was_stopped=number % 4 == 2)
            if not known[-1].is_under_way:
                sampler.tell(known[-1])

    def test_it_goes_on_after_a_resume(self) -> None:
        """A new object that is told of all trials, from a store that keeps JSON, asks as the old one would have."""
        known = self._searched()
        stored = [replace(each, hyperparameters=json.loads(json.dumps(each.hyperparameters))) for each in known]
        for upto in {1, len(known) // 2, len(known) - 1}:
            again = self._begun()
            for each in stored[:upto]:
                again.tell(each)
            assert again.ask(upto, stored[:upto]) == known[upto].hyperparameters, f"trial {upto} differs"

    def test_asking_changes_nothing_of_the_search(self) -> None:
        """The trials are as they were, and a changed configuration changes no other."""
        sampler, known = self._begun(), self._searched()[:4]
        before = json.dumps([dict(each.hyperparameters) for each in known])
        values = sampler.ask(len(known), known)
        assert json.dumps([dict(each.hyperparameters) for each in known]) == before
        assert values is not None
        values.clear()
        assert sampler.ask(len(known) + 1, known) != {}

    def test_objectives(self) -> None:
        """It takes several objectives, or says that it does not before anything starts."""
        if self.most_objectives > 1:
            assert self._searched(objectives=2)
            return
        try:
            self.make_sampler().begin(self.space(), 2, 1)
        except SearchInvalid:
            return
        raise AssertionError("begin accepts two objectives, but most_objectives is 1")

    def test_trials_ask_for_hyperparameters_by_name(self) -> None:
        """What a trial asks for is inside of the bounds, and the same after a resume."""
        if self.suggests:
            first, again = self._suggested(), self._suggested()
            assert first == again
            assert all(0 < each["decay"] <= 0.1 and each["depth"] in (1, 2, 3) for each in first)
            return
        sampler = self._begun()
        trial = self._asked(sampler, 0, [])
        try:
            sampler.suggest(0, "decay", LogUniform(1e-5, 0.1), [trial])
        except SearchInvalid:
            return
        raise AssertionError("the sampler suggests, but suggests is False")

    # --- inside -------------------------------------------------------------------------------------------------------

    def _begun(self, seed: int = 1, objectives: int = 1) -> Sampler:
        sampler = self.make_sampler()
        sampler.begin(self.space(), objectives, seed)
        return sampler

    def _searched(self, seed: int = 1, objectives: int = 1) -> list[Observed]:
        """Return the trials of a search with one trial at a time."""
        sampler = self._begun(seed, objectives)
        known: list[Observed] = []
        for number in range(self.trials):
            known.append(self._asked(sampler, number, known))
            self._end(sampler, known, number, objectives)
        return known

    def _asked(self, sampler: Sampler, number: int, known: Sequence[Observed]) -> Observed:
        values = sampler.ask(number, list(known))
        assert values is not None, f"the space has more than {number} configurations"
        return Observed(number, dict(values), None, 0.0, is_under_way=True)

    def _end(self, sampler: Sampler, known: list[Observed], number: int, objectives: int = 1) -> None:
        scores = self.scores(known[number].hyperparameters, objectives)
        known[number] = replace(
            known[number], scores=scores, step=1.0, is_under_way=False, intermediate={1.0: scores[0]}
        )
        sampler.tell(known[number])

    def _values(self, trials: Sequence[Observed]) -> list[dict[str, Any]]:
        return [dict(each.hyperparameters) for each in trials]

    def _suggested(self) -> list[dict[str, Any]]:
        """Search in a space of which trials tell only by asking, with a new sampler after half of them."""
        known: list[Observed] = []
        asked: list[dict[str, Any]] = []
        sampler = self._begun_without_space()
        for number in range(self.trials):
            if number == self.trials // 2:
                sampler = self._begun_without_space()
                for each in known:
                    sampler.tell(each)
            known.append(self._asked(sampler, number, known))
            for name, distribution in (("decay", LogUniform(1e-5, 0.1)), ("depth", Choice([1, 2, 3]))):
                value = sampler.suggest(number, name, distribution, list(known))
                known[-1] = replace(
                    known[-1],
                    hyperparameters={**known[-1].hyperparameters, name: value},
                    suggested={**known[-1].suggested, name: distribution},
                )
            asked.append(dict(known[-1].hyperparameters))
            self._end(sampler, known, number)
        return asked

    def _begun_without_space(self) -> Sampler:
        sampler = self.make_sampler()
        sampler.begin(SearchSpace({}), 1, 1)
        return sampler
