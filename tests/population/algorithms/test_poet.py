"""POET finds its way from island to island, in the steps that the paper writes down."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithms.poet import POET, RoundPhase
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.open_ended.environment_space import EnvironmentSpace
from ropewalk.population.open_ended.niche import ESConfig
from ropewalk.population.open_ended.reproduction import Reproduction
from ropewalk.population.outcome import Outcome
from ropewalk.population.state_file import read_state, write_state
from ropewalk.population.trial import Trial
from ropewalk.population.weighted_sum import Draws
from tests.population.algorithms.poet_reference import ReferencePOET
from tests.population.local_loop import is_plain, same_state
from tests.population.open_ended.islands import Islands, fitness

TABLE = NoiseTable(2**14)
LEARNING = ESConfig(pairs=8, sigma=0.3, sigma_decay=0.99, learning_rate=0.1, least_learning_rate=0.01, weight_decay=0)
TINY = ESConfig(pairs=3, sigma=0.3, sigma_decay=0.9, learning_rate=0.1, learning_rate_decay=0.9, weight_decay=0.01)
REPRODUCTION = Reproduction(every=5, children=8, capacity=6)


def islands(seed: int = 0, **arguments: Any) -> POET:
    arguments = {"learning": LEARNING, "reproduction": REPRODUCTION, "transfer_every": 5} | arguments
    return POET(2, Islands(), noise=TABLE, seed=seed, **arguments)


def busy(seed: int = 0) -> POET:
    """Every kind of round within a few iterations."""
    return islands(seed, learning=TINY, reproduction=Reproduction(every=2, children=4, capacity=3, archive_capacity=4,
                   admitted=2, neighbours=2), transfer_every=3)  # fmt: skip


def outcomes(poet: POET, candidates: Any, function: Callable[..., Any] | None = None) -> list[Outcome]:
    evaluator, function = poet.evaluator(), function or (lambda parameters, island, trial: fitness(parameters, island))
    return [evaluator(function, number, Trial(derive(poet.seed, number))) for number in candidates]


def play_round(poet: POET, function: Callable[..., Any] | None = None) -> None:
    candidates = poet.ask(poet.population)
    poet.tell(candidates, outcomes(poet, candidates, function))


def play(poet: POET, generations: int, function: Callable[..., Any] | None = None) -> POET:
    while poet.generation < generations:
        play_round(poet, function)
    return poet


@pytest.mark.parametrize("seed", range(3))
def test_it_reaches_islands_that_no_agent_feels_from_the_start(seed: int) -> None:
    poet = play(islands(seed), 60)
    reached = [pair for pair in poet.pairs if pair.score is not None and pair.score > 200]
    assert max(float(np.linalg.norm(pair.environment)) for pair in reached) > 4.5
    assert poet.ask(0).start < 12_000  # evaluations


def test_learning_there_from_the_start_is_in_vain() -> None:
    class Far(Islands):
        def initial(self) -> list[float]:
            return [4.5, 0.0]

    poet = play(POET(2, Far(), learning=LEARNING, noise=TABLE), 60)
    assert poet.pairs[0].score == 0 and not poet.pairs[0].parameters.any()


@pytest.mark.parametrize("seed", range(3))
def test_each_iteration_is_that_of_the_paper(seed: int) -> None:
    poet = busy(seed)
    reference = ReferencePOET(np.zeros(2), Islands(), fitness, Draws(TABLE, seed, 2), TINY, poet.reproduction, 3)
    for generation in range(14):
        play(poet, generation + 1)
        reference.iterate(generation)
        assert [pair.number for pair in poet.pairs] == [niche["number"] for niche in reference.active]
        assert [pair.environment for pair in poet.archive] == reference.archive
        moves = [(move.generation, move.source, move.target, move.fine_tuned) for move in poet.lineage.transfers]
        assert moves == reference.transfers
        for pair, niche in zip(poet.pairs, reference.active, strict=True):
            assert pair.environment == niche["environment"] and pair.score == niche["score"]
            assert pair.parameters.dtype == np.float32 and pair.parameters.tobytes() == niche["theta"].tobytes()
    assert poet.ask(0).start == reference.num_evaluations
    assert len(reference.archive) > 2 and reference.transfers


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(deadline=None, max_examples=8)
def test_results_may_come_in_any_order_and_pieces(seed: int, piece: int) -> None:
    whole, pieces, rng = play(busy(), 5), busy(), random.Random(seed)
    waiting: list[int] = []
    while pieces.generation < 5:
        waiting += pieces.ask(rng.randrange(1, 30))
        rng.shuffle(waiting)
        told, waiting = waiting[:piece], waiting[piece:]
        pieces.tell(told, outcomes(pieces, told))
    assert same_state(pieces.state_dict(), whole.state_dict())


def test_nothing_is_asked_for_while_results_of_a_round_are_missing() -> None:
    poet = busy()
    candidates = poet.ask(poet.population)
    poet.tell(candidates[1:], outcomes(poet, candidates[1:]))
    assert len(poet.ask(10)) == 0 and poet.generation == 0
    poet.tell(candidates[:1], outcomes(poet, candidates[:1]))
    assert len(poet.ask(10)) > 0 and poet.generation == 1


def test_it_goes_on_without_what_was_dropped() -> None:
    poet, rng = islands(), random.Random(5)
    while poet.generation < 40:
        candidates = list(poet.ask(poet.population))
        dropped = [number for number in candidates if rng.random() < 0.2]
        told = [number for number in candidates if number not in dropped]
        results = outcomes(poet, told)
        poet.drop(dropped)
        poet.tell(told, results)
    assert len(poet.lineage.branches) > 3
    assert max(pair.score or 0 for pair in poet.pairs) > 250


def test_it_goes_on_when_all_was_dropped() -> None:
    poet = busy()
    for _ in range(30):
        play_round(poet)
    before = poet.generation
    for _ in range(12):
        poet.drop(poet.ask(poet.population))
    assert poet.generation > before + 2
    play(poet, poet.generation + 5)


def test_what_comes_after_it_was_dropped_is_counted_as_late() -> None:
    poet = busy()
    candidates = poet.ask(poet.population)
    results = outcomes(poet, candidates)
    poet.drop(candidates)
    poet.tell(candidates, results)
    assert poet.figures()["late"] == len(candidates)


@pytest.mark.parametrize("phase", RoundPhase)
def test_it_goes_on_from_a_state_in_the_middle_of_any_round(phase: RoundPhase, tmp_path: Path) -> None:
    poet, again = play(busy(), 7), busy()
    while poet.state_dict()["phase"] != phase.value:
        play_round(poet)
    asked = poet.ask(5)
    poet.tell(asked[:1], outcomes(poet, asked[:1]))
    assert poet.state_dict()["phase"] == phase.value
    assert is_plain(poet.state_dict())
    write_state(tmp_path / "state", poet.state_dict())
    again.load_state_dict(read_state(tmp_path / "state"))
    assert again.population == poet.population
    for each in (poet, again):
        each.tell(asked[1:], outcomes(each, asked[1:]))
        play(each, 15)
    assert same_state(again.state_dict(), poet.state_dict())
    assert again.lineage == poet.lineage and again.figures() == poet.figures()


def test_a_state_of_other_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="pairs 3 there and 8 here"):
        islands().load_state_dict(busy().state_dict())
    with pytest.raises(ValueError, match="dim 2 there and 5 here"):
        POET(5, Islands()).load_state_dict(busy().state_dict())


def test_only_so_many_environments_are_active_and_archived() -> None:
    poet = play(busy(), 20)
    assert (len(poet.pairs), len(poet.archive)) == (3, 4)
    assert [pair.number for pair in poet.archive + poet.pairs] == list(range(*_last(poet, 7)))
    retired = [branch.number for branch in poet.lineage.branches if branch.retired is not None]
    assert retired == list(range(len(poet.lineage.branches) - 3))


def _last(poet: POET, num: int) -> tuple[int, int]:
    return len(poet.lineage.branches) - num, len(poet.lineage.branches)


@pytest.mark.parametrize("tuned", [False, True])
def test_an_agent_that_is_better_elsewhere_moves_there_as_it_is_or_fine_tuned(tuned: bool) -> None:
    poet = play(busy(), 9)  # an iteration with transfers, and without children
    while poet.state_dict()["phase"] != "candidates":
        play_round(poet)
    own = {tuple(pair.environment): pair.parameters for pair in poet.pairs}
    play_round(poet, lambda agent, island, _: 200.0 if np.array_equal(agent, own[tuple(island)]) else 210.0)
    proposals = poet.state_dict()["proposals"]
    play_round(poet, lambda *_: 220.0 if tuned else 205.0)
    moves = poet.lineage.transfers[-len(own) :]
    assert [(move.generation, move.target, move.fine_tuned) for move in moves] == [
        (9, pair.number, tuned) for pair in poet.pairs]  # fmt: skip
    assert [move.source for move in moves] == [poet.pairs[1].number] + [poet.pairs[0].number] * (len(own) - 1)
    assert {pair.score for pair in poet.pairs} == {220.0 if tuned else 210.0}
    came = [pair.parameters.tobytes() for pair in poet.pairs]
    there = [row.tobytes() for row in (proposals if tuned else own.values())]
    assert all(agent in there for agent in came) and {niche["sigma"] for niche in poet.state_dict()["niches"]} == {0.3}


def test_an_agent_that_is_as_good_elsewhere_stays() -> None:
    poet = play(busy(), 9)
    num = len(poet.lineage.transfers)
    play(poet, 10, lambda *_: 100.0)
    assert len(poet.lineage.transfers) == num


@pytest.mark.parametrize("step", [50.0, 1e-4], ids=["too hard", "too easy"])
def test_children_that_are_too_hard_or_too_easy_are_not_admitted(step: float) -> None:
    reproduction = Reproduction(every=2, at_score=0, least_score=20, most_score=280)
    poet = POET(2, Islands(step=step), learning=LEARNING, reproduction=reproduction, noise=TABLE)
    play(poet, 12)
    assert len(poet.pairs) == 1
    assert poet.ask(0).start > 12 * 17 + 4 * 8  # they were tried


def test_a_child_that_becomes_too_easy_with_the_best_agent_is_not_admitted() -> None:
    scores = {
        RoundPhase.CHILDREN: 100.0,
        RoundPhase.CANDIDATES: 100.0,
        RoundPhase.PROPOSALS: 301.0,
        RoundPhase.STEP: 250.0,
    }
    poet = islands(reproduction=Reproduction(every=1, children=3))
    phases: list[str] = []
    while poet.generation < 4:
        phases.append(poet.state_dict()["phase"])
        score = scores[RoundPhase(phases[-1])]
        play_round(poet, lambda *_: score)  # noqa: B023  # called at once
    assert len(poet.pairs) == 1
    assert phases == ["step"] + 3 * ["children", *3 * ["candidates", "proposals"], "step"]


def test_the_most_novel_child_is_tried_first_and_only_one_is_admitted() -> None:
    poet = islands(reproduction=Reproduction(every=1, children=6))
    while poet.state_dict()["phase"] != "children":
        play_round(poet, lambda *_: 250.0)
    children = [child["environment"] for child in poet.state_dict()["brood"]]
    play(poet, 2, lambda *_: 250.0)
    assert [pair.environment for pair in poet.pairs] == [[0.0, 0.0], max(children, key=np.linalg.norm)]


def test_a_candidate_is_a_number_and_agents_travel_with_the_evaluator() -> None:
    poet = play(busy(), 6)
    assert poet.ask(poet.population) == range(poet.ask(0).start - poet.population, poet.ask(0).start)
    assert poet.evaluator() is poet.evaluator()
    assert len(pickle.dumps(poet.evaluator())) < 4_000


def test_heavy_sums_of_a_round_are_one_map() -> None:
    poet, calls = play(busy(), 7), list[int]()

    def counting(function: Any, items: Any) -> list[Any]:
        calls.append(len(items))
        return [function(item) for item in items]

    poet.map = counting
    while poet.state_dict()["phase"] != "candidates":
        play_round(poet)
    calls.clear()
    play_round(poet)
    assert len(calls) == 1 and calls[0] > 2


def test_the_incumbent_is_the_newest_pair_that_is_good_enough() -> None:
    poet = islands()
    assert poet.incumbent().score is None
    play(poet, 40)
    able = [pair for pair in poet.pairs if pair.score is not None and pair.score >= 200]
    assert poet.incumbent().number == able[-1].number
    trial = Trial(0, is_test=True)
    tested = poet.evaluator().test(
        lambda parameters, island, trial: fitness(parameters, island), poet.incumbent(), trial
    )
    assert tested.fitness == fitness(poet.incumbent().parameters, poet.incumbent().environment)


def test_figures_count_niches_environments_and_transfers() -> None:
    poet = play(busy(), 14)
    figures = poet.figures()
    assert figures["niches"] == 3 and figures["environments"] == len(poet.lineage.branches)
    assert figures["transfers"] == len(poet.lineage.transfers) > 0
    assert figures["score_worst"] <= figures["score_mean"] <= figures["score_best"] <= 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 0}, "episodes must be a whole number, 1 or more, not 0"),
        ({"transfer_every": 0}, "transfer_every must be a whole number, 1 or more, not 0"),
        ({"seed": -1}, "seed must be a whole number, 0 or more, not -1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        POET(2, Islands(), **arguments)


def test_a_space_without_its_methods_is_refused() -> None:
    with pytest.raises(TypeError, match="has no mutate, vector, describe"):
        POET(2, cast(EnvironmentSpace, type("Space", (), {"initial": list})()))
