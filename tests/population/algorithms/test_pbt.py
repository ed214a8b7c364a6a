"""Population based training: what it decides, step by step, and that it survives what is lost, late or damaged."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.pool.seeds import derive
from ropewalk.population.algorithms.pbt import PBT
from ropewalk.population.algorithms.pbt_explorer import quantiles
from ropewalk.population.algorithms.pbt_member import LOST, Interval, PBTMember
from ropewalk.population.algorithms.pbt_standing import MOST_IN_VAIN
from ropewalk.population.algorithms.pbt_states import StateFile
from ropewalk.population.evaluating import evaluate
from ropewalk.population.failures import FailurePolicy
from ropewalk.population.hyperparameters import LogUniform, Uniform
from ropewalk.population.outcome import Outcome
from ropewalk.population.run_result import RunResult
from ropewalk.population.state_file import pack_state, unpack_state
from ropewalk.population.trial import Trial
from tests.population.algorithms.surrogate import (
    CORNERS,
    SPACE,
    TOP,
    explore,
    outcomes_of,
    run,
    train,
    train_measured,
    train_with_noise,
)


def scored(asked: list[Interval], *scores: float) -> list[Outcome]:
    """Outcomes with these scores; the state of each is the name of its interval."""
    return [Outcome(score, held=f"{each.member}.{each.number}") for each, score in zip(asked, scores, strict=True)]


def facts(algorithm: PBT) -> list[tuple[Any, ...]]:
    """Of every member: hyperparameters, steps, state."""
    return [(each.hyperparameters, each.steps, each.state) for each in algorithm._members]  # pyright: ignore[reportPrivateUsage]


# --- the toy problem --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("synchronous", [False, True])
def test_it_reaches_the_top_that_a_grid_of_fixed_hyperparameters_does_not(seed: int, synchronous: bool) -> None:
    def reached(**options: Any) -> float:
        algorithm = PBT(SPACE, population=2, interval=4, steps=400, initial=CORNERS, seed=seed, **options)
        run(algorithm, 2, function=train_measured)
        best = algorithm.best
        assert best is not None
        return algorithm.schedule().stretches[-1].score

    assert reached(explore=explore, synchronous=synchronous) > TOP - 0.05
    grid = reached(burn_in=10**9, synchronous=synchronous)
    assert grid == pytest.approx(TOP - 0.81, abs=1e-3)


def test_copying_without_exploring_and_exploring_without_copying_reach_less() -> None:
    def reached(burn_in: int = 0, **options: Any) -> float:
        algorithm = PBT(SPACE, population=2, interval=4, steps=200, initial=CORNERS, burn_in=burn_in, **options)
        run(algorithm, 2, function=train_measured)
        return algorithm.schedule().stretches[-1].score

    both = reached(explore=explore)
    assert reached(explore=lambda h, rng: h) < both - 0.2
    assert reached(burn_in=10**9) < both - 0.2


# --- step by step -----------------------------------------------------------------------------------------------------


def reference(seed: int, population: int, rounds: int) -> list[tuple[dict[str, float], float, list[float]]]:
    """Algorithm 1 with truncation selection, in rounds: hyperparameters, score and state of each member."""
    low, high, quantile, resample, factors = 0.0, 1.0, 0.25, 0.25, (0.8, 1.2)
    members: list[tuple[dict[str, float], float, np.ndarray]] = []
    for number in range(population):
        rng = np.random.default_rng([seed, 1, number])
        members.append(({"h0": rng.uniform(low, high), "h1": rng.uniform(low, high)}, 0.0, np.array([0.9, 0.9])))
    for round_ in range(rounds):
        trained: list[tuple[dict[str, float], float, np.ndarray]] = []
        for number, (h, _, x) in enumerate(members):
            for _ in range(3):
                x = x - 0.02 * np.array([h["h0"], h["h1"]]) * x
            x = x + Trial(derive(derive(seed, number), round_)).rng.normal(0.0, 0.01, 2)
            trained.append((h, TOP - float(x @ x), x))
        order = sorted(range(population), key=lambda number: (trained[number][1], number))
        num = int(np.ceil(quantile * population))
        members = list(trained)
        for number in sorted(order[:num]):
            rng = np.random.default_rng([seed, 2, number, round_ + 1])
            h, score, x = trained[sorted(order[-num:])[rng.integers(num)]]
            explored: dict[str, float] = {}
            for name in ("h0", "h1"):
                anew, factor = rng.random() < resample, factors[rng.integers(2)]
                explored[name] = rng.uniform(low, high) if anew else min(max(h[name] * factor, low), high)
            members[number] = explored, score, x
    return [(h, score, x.tolist()) for h, score, x in members]


@pytest.mark.parametrize("seed", [0, 7])
def test_rounds_equal_the_reference_in_any_order_and_pieces(seed: int) -> None:
    expected = reference(seed, population=6, rounds=8)
    shuffle = random.Random(seed)
    for pieces in (6, 1, 4):
        algorithm = PBT(SPACE, population=6, interval=3, synchronous=True, seed=seed)
        while algorithm.generation < 8:
            asked = algorithm.ask(pieces)
            shuffle.shuffle(asked)
            for interval in asked:
                algorithm.tell([interval], outcomes_of(algorithm, [interval], train_with_noise))
        members = algorithm._members  # pyright: ignore[reportPrivateUsage]
        found = [(each.hyperparameters, each.score, each.state and each.state.get().tolist()) for each in members]
        assert found == expected


def test_whoever_is_told_is_compared_with_what_the_others_reached_last() -> None:
    algorithm = PBT({"x": Uniform(0, 1)}, population=4, resample_probability=0.0, factors=(0.5,))
    asked = algorithm.ask(4)
    algorithm.tell(asked, scored(asked, 1.0, 2.0, 3.0, 4.0))  # 0 was alone; 1, 2 and 3 were each the best so far
    assert not algorithm.mutations
    best = facts(algorithm)[3][0]["x"]

    again = algorithm.ask(4)
    algorithm.tell(again[1:2], scored(again[1:2], 1.5))  # 0 is still worse
    assert not algorithm.mutations
    algorithm.tell(again[:1], scored(again[:1], 1.2))
    (mutation,) = algorithm.mutations
    assert (mutation.reason, mutation.member, mutation.donor, mutation.donor_score) == ("exploit", 0, 3, 4.0)
    assert facts(algorithm)[0] == ({"x": 0.5 * best}, 1, "3.0")
    assert "member 0 (1.2, 2 steps) copies member 3 (4.0, 1 steps)" in str(mutation)
    (third,) = algorithm.ask(1)
    assert (third.member, third.number, third.steps, third.state) == (0, 2, 1, "3.0")


def test_as_many_copy_as_are_copied_at_most_half_and_those_compared_lose_ties() -> None:
    assert quantiles([3.0, 1.0, None, 2.0, 0.0], [1], 0.25) == ([4], [0])
    assert quantiles([3.0, 1.0, None, 2.0, 0.0], [1], 0.3) == ([1, 4], [0, 3])
    assert quantiles([1.0, 1.0, 1.0], [1], 0.5) == ([1], [2])
    assert quantiles([1.0, None], [0], 0.5) == ([], [])


def test_a_tie_is_not_better_and_nobody_is_copied() -> None:
    for synchronous in (False, True):
        algorithm = PBT(SPACE, population=4, quantile=0.5, synchronous=synchronous)
        for _ in range(2):
            asked = algorithm.ask(4)
            algorithm.tell(asked, scored(asked, 1.0, 1.0, 1.0, 1.0))
        assert not algorithm.mutations and [fact[1] for fact in facts(algorithm)] == [2, 2, 2, 2]
        asked = algorithm.ask(4)
        algorithm.tell(asked, scored(asked, 1.0, 1.0, 1.0, 2.0))
        assert {each.donor for each in algorithm.mutations} <= {3}


def test_nobody_copies_before_the_burn_in_is_over() -> None:
    algorithm = PBT(SPACE, population=2, interval=5, burn_in=15, synchronous=True)
    for expected in (0, 0, 1, 2):
        asked = algorithm.ask(2)
        algorithm.tell(asked, scored(asked, 0.0, 1.0))
        assert len(algorithm.mutations) == expected


def test_members_take_turns_if_there_are_more_than_are_asked_for() -> None:
    algorithm = PBT(SPACE, population=5, burn_in=10**9)
    under_way = algorithm.ask(2)
    order = [each.member for each in under_way]
    for _ in range(8):
        told = under_way.pop(0)
        algorithm.tell([told], scored([told], 1.0))
        under_way += algorithm.ask(1)
        order.append(under_way[-1].member)
    assert order == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert [each.member for each in algorithm.ask(9)] == [0, 1, 2]  # the other two are under way
    assert algorithm.ask(9) == []


def test_steps_end_members_and_cut_their_last_interval_short() -> None:
    algorithm = PBT(SPACE, population=2, interval=4, steps=10, burn_in=99)
    lengths: list[int] = []
    while not algorithm.finished:
        asked = algorithm.ask(1)
        lengths += [each.length for each in asked]
        algorithm.tell(asked, scored(asked, 1.0))
    assert lengths == [4, 4, 4, 4, 2, 2]
    assert algorithm.ask(2) == []


def test_steps_that_training_reports_count_in_place_of_the_interval() -> None:
    algorithm = PBT(SPACE, population=1, interval=4)
    asked = algorithm.ask(1)
    algorithm.tell(asked, [Outcome(1.0, steps=7)])
    assert algorithm.ask(1)[0].steps == 7
    assert algorithm.schedule().stretches[0].end == 7


def test_what_the_user_explores_must_be_the_same_hyperparameters() -> None:
    algorithm = PBT(SPACE, population=2, explore=lambda h, rng: {"h0": 1.0})
    asked = algorithm.ask(2)
    with pytest.raises(ValueError, match=r"explore gave the hyperparameters \['h0'\]; they must be \['h0', 'h1'\]"):
        algorithm.tell(asked, scored(asked, 1.0, 0.0))


def test_the_best_member_comes_with_what_it_was_trained_with() -> None:
    algorithm = PBT(SPACE, population=2, initial=CORNERS)
    assert algorithm.incumbent() is None and algorithm.best is None and len(algorithm.schedule()) == 0
    asked = algorithm.ask(2)
    outcomes = outcomes_of(algorithm, asked, train)
    outcomes[1].fitness -= 0.1
    algorithm.tell(asked, outcomes)
    assert [(each.member, each.donor) for each in algorithm.mutations] == [(1, 0)]
    best = algorithm.incumbent()
    assert isinstance(best, PBTMember)
    assert best.hyperparameters == CORNERS[0]
    assert best.state == pytest.approx(np.array([0.9 * 0.98, 0.9]))
    assert algorithm.figures() == {"exploits": 1, "lost": 0, "best_h0": 1.0, "best_h1": 0.0}


# --- every run with steps ends ----------------------------------------------------------------------------------------


def ended(algorithm: PBT, function: Any, **options: Any) -> RunResult:
    """The run, which must need no more than a thousand generations to end by itself."""
    run = evaluate(algorithm, function, generations=1000, progress=False, **options)
    assert algorithm.finished and len(run.table) < 1000
    return run


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_members_with_the_same_score_train_each_step_once(synchronous: bool, mode: Any) -> None:
    def constant(member: PBTMember, trial: Trial) -> float:
        member.state = {}
        return 0.0

    algorithm = PBT(SPACE, population=4, steps=3, synchronous=synchronous)
    assert ended(algorithm, constant, mode=mode).evaluations == 12
    assert not algorithm.mutations


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_member_that_is_always_nan_is_worse_than_those_whose_score_it_is_told(synchronous: bool) -> None:
    def without_the_first(member: PBTMember, trial: Trial) -> float:
        member.state = {}
        return np.nan if member.number == 0 else 1.0

    algorithm = PBT(SPACE, population=4, steps=3, synchronous=synchronous)
    assert ended(algorithm, without_the_first, mode="steady", failures=FailurePolicy(nan="worst")).evaluations < 20
    assert {each.member for each in algorithm.mutations} == {0}


def test_copying_what_is_not_as_far_repeats_no_more_steps_than_a_member_has() -> None:
    def worse_with_every_step(member: PBTMember, trial: Trial) -> float:
        member.state = member.steps + member.interval
        return -float(member.state)

    algorithm = PBT(SPACE, population=3, interval=2, steps=20)
    run = ended(algorithm, worse_with_every_step, mode="steady")
    assert 3 * 10 < run.evaluations <= 2 * 3 * 10
    assert any(each.steps > each.donor_steps for each in algorithm.mutations)


@pytest.mark.parametrize("policy", ["worst", "drop"])
def test_a_member_that_always_fails_is_given_up(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fails_later(member: PBTMember, trial: Trial) -> float:
        member.state = member.steps + member.interval
        return np.nan if member.steps == 2 else 1.0

    algorithm = PBT(SPACE, population=1, steps=4)
    assert ended(algorithm, fails_later, failures=FailurePolicy(nan=policy)).evaluations == 2 + MOST_IN_VAIN
    assert facts(algorithm)[0][1] == 2 and algorithm.incumbent() is not None
    assert "member 0 is given up after 2 steps: 10 of its intervals were in vain" in caplog.text


@pytest.mark.parametrize("policy", ["copy", "restart"])
def test_members_whose_states_are_lost_every_time_are_given_up(tmp_path: Path, policy: Any) -> None:
    def forgotten(member: PBTMember, trial: Trial) -> float:
        member.state = 1
        return 1.0

    class Forgets(PBT):
        def ask(self, n: int) -> list[Interval]:
            return [replace(each, state=each.state and StateFile("/", "nowhere")) for each in super().ask(n)]

    algorithm = Forgets(SPACE, population=2, steps=3, lost=policy)
    assert ended(algorithm, forgotten, mode="steady").evaluations <= 5 * MOST_IN_VAIN


def test_without_steps_nobody_is_given_up() -> None:
    algorithm = PBT(SPACE, population=1)
    for _ in range(2 * MOST_IN_VAIN):
        algorithm.drop(algorithm.ask(1))
    assert len(algorithm.ask(1)) == 1 and not algorithm.finished


# --- what is late, failed or lost -------------------------------------------------------------------------------------


def test_a_dropped_interval_leaves_the_state_and_the_next_has_another_seed() -> None:
    algorithm = PBT(SPACE, population=2, burn_in=99)
    first = algorithm.ask(2)
    algorithm.tell(first, scored(first, 1.0, 2.0))
    dropped, _ = algorithm.ask(2)
    algorithm.drop([dropped])
    (again,) = algorithm.ask(2)
    assert (again.member, again.steps, again.state, again.number) == (0, 1, "0.0", 2)
    assert again.seed != dropped.seed
    algorithm.tell([dropped], scored([dropped], 9.0))  # too late: nobody waits for it any more
    assert facts(algorithm)[0][1:] == (1, "0.0")


def test_a_round_ends_without_those_that_were_dropped() -> None:
    algorithm = PBT(SPACE, population=4, synchronous=True, quantile=0.25)
    asked = algorithm.ask(4)
    algorithm.tell(asked[:3], scored(asked[:3], 1.0, 2.0, 3.0))
    assert algorithm.ask(4) == [] and algorithm.generation == 0
    algorithm.drop(asked[3:])
    assert algorithm.generation == 1
    assert [(each.member, each.donor) for each in algorithm.mutations] == [(0, 2)]
    assert [each.steps for each in algorithm.ask(4)] == [1, 1, 1, 0]


def test_a_failed_interval_leaves_the_state_and_its_score_counts() -> None:
    algorithm = PBT(SPACE, population=2, resample_probability=0.0)
    asked = algorithm.ask(2)
    algorithm.tell(asked, scored(asked, 5.0, 6.0))
    asked = algorithm.ask(2)
    algorithm.tell(asked[1:], [Outcome(-100.0, failure="NaN")])
    assert [(each.member, each.donor) for each in algorithm.mutations] == [(1, 0)]
    assert facts(algorithm)[1][1:] == (1, "0.0")
    assert len(algorithm.history) == 2


def test_nan_is_left_to_the_loop_and_its_state_is_not_kept() -> None:
    algorithm = PBT(SPACE, population=1)
    (outcome,) = outcomes_of(algorithm, algorithm.ask(1), lambda member, trial: setattr(member, "state", 1) or np.nan)
    assert not outcome.has_fitness and outcome.held is None


def train_and_forget(member: PBTMember) -> float:
    return 1.0


@pytest.mark.parametrize("folder", [None, "members"])
def test_training_must_set_a_state_and_an_empty_one_is_one(tmp_path: Path, folder: str | None) -> None:
    algorithm = PBT(SPACE, population=2, steps=2, folder=folder and tmp_path / folder)
    message = "the training function train_and_forget left member.state None, .* set member.state to it"
    with pytest.raises(ValueError, match=message):
        evaluate(algorithm, train_and_forget, progress=False)

    def train_nothing(member: PBTMember, trial: Trial) -> float:
        member.state = {}
        return 1.0

    algorithm = PBT(SPACE, population=2, steps=2, folder=folder and tmp_path / folder)
    run = evaluate(algorithm, train_nothing, progress=False)
    assert run.evaluations == 4 and run.best is not None and run.best.state == {}


def test_each_episode_of_a_test_begins_with_the_state_that_was_trained() -> None:
    def count(member: PBTMember, trial: Trial) -> float:
        member.state = member.state or []
        member.state.append(member.interval)  # in place as well
        return float(len(member.state))

    run = evaluate(PBT(SPACE, population=2, steps=3, synchronous=True), count, test=4, progress=False)
    assert [row.get("test") for row in run.table] == [None, 2, 3]  # the incumbent is that of the row before
    assert run.best is not None and run.best.state == [1, 1]


def test_hyperparameters_are_a_mapping() -> None:
    names: Any = ["lr"]
    with pytest.raises(TypeError, match=r"hyperparameters must map names to .*, not be \['lr'\]"):
        PBT(names)


def lost(asked: list[Interval]) -> list[Outcome]:
    return [Outcome(-np.inf, failure=f"{LOST}that of member {each.member}") for each in asked]


def test_a_member_whose_state_is_lost_goes_on_from_another_and_that_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    algorithm = PBT(SPACE, population=3, burn_in=99)
    asked = algorithm.ask(3)
    algorithm.tell(asked, scored(asked, 1.0, 2.0, 3.0))
    asked = algorithm.ask(3)
    algorithm.tell(asked[2:], lost(asked[2:]))
    (mutation,) = algorithm.mutations
    assert (mutation.reason, mutation.member, mutation.donor, mutation.why) == ("lost", 2, 1, f"{LOST}that of member 2")
    assert facts(algorithm)[2][1:] == (1, "1.0")
    assert "state lost: that of member 2; its policy is 'copy'" in caplog.text
    assert algorithm.figures()["lost"] == 1


@pytest.mark.parametrize("policy", ["copy", "restart"])
def test_members_start_anew_if_every_state_is_lost(policy: Any) -> None:
    algorithm = PBT(SPACE, population=3, burn_in=99, lost=policy)
    asked = algorithm.ask(3)
    algorithm.tell(asked, scored(asked, 1.0, 2.0, 3.0))
    for _ in range(9):  # each loses what it has copied as well, until nothing is left to copy
        asked = [each for each in algorithm.ask(3) if each.state is not None]
        algorithm.tell(asked, lost(asked))
        if not asked:
            break
    assert [fact[1:] for fact in facts(algorithm)] == [(0, None)] * 3
    assert [mutation.reason for mutation in algorithm.mutations].count("restart") == 3
    assert algorithm.best is None and algorithm.incumbent() is None


def test_lost_states_end_the_run_if_that_is_the_policy() -> None:
    algorithm = PBT(SPACE, population=1, lost="raise")
    asked = algorithm.ask(1)
    algorithm.tell(asked, scored(asked, 1.0))
    asked = algorithm.ask(1)
    with pytest.raises(RuntimeError, match='state lost: that of member 0; PBT\\(lost="copy"\\)'):
        algorithm.tell(asked, lost(asked))


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_saved_state_goes_on_as_if_nothing_had_happened(tmp_path: Path, synchronous: bool) -> None:
    def make() -> PBT:
        return PBT(SPACE, population=4, interval=2, steps=10, synchronous=synchronous, folder=tmp_path, seed=3)

    unbroken = make()
    run(unbroken, 4, function=train_with_noise, most=2)
    under_way = unbroken.ask(3)
    first = outcomes_of(unbroken, under_way, train_with_noise)
    unbroken.tell(under_way[:1], first[:1])

    resumed = make()
    resumed.load_state_dict(unpack_state(pack_state(unbroken.state_dict()), "here"))
    assert resumed.generation == unbroken.generation
    still = {each.member for each in under_way[1:]}
    waiting = {under_way[0].member} if synchronous else set[int]()
    other = make()
    other.load_state_dict(unbroken.state_dict())
    assert {each.member for each in other.ask(9)} == {0, 1, 2, 3} - still - waiting
    for algorithm in (unbroken, resumed):
        algorithm.tell(under_way[1:], first[1:])  # the loop evaluates what was under way again
        run(algorithm, 5, function=train_with_noise)
    assert facts(resumed) == facts(unbroken)
    assert resumed.mutations == unbroken.mutations != []
    assert resumed.schedule() == unbroken.schedule()
    assert np.array_equal(resumed.incumbent().state, unbroken.incumbent().state)  # pyright: ignore[reportOptionalMemberAccess]


def test_a_state_of_another_problem_is_refused(tmp_path: Path) -> None:
    state = PBT(SPACE, population=5, folder=tmp_path).state_dict()
    with pytest.raises(ValueError, match="population 5 there and 6 here"):
        PBT(SPACE, population=6, folder=tmp_path).load_state_dict(state)
    with pytest.raises(ValueError, match="hyperparameters"):
        PBT({"rate": LogUniform(0.1, 1.0)}, population=5, folder=tmp_path).load_state_dict(state)


def test_states_in_memory_cannot_be_saved_and_the_error_says_what_can() -> None:
    algorithm = PBT(SPACE, population=1)
    asked = algorithm.ask(1)
    algorithm.tell(asked, outcomes_of(algorithm, asked))
    with pytest.raises(ValueError, match=r"folder=\.\.\., then workers write them to files"):
        algorithm.state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"population": 0}, "population must be a whole number, 1 or more, not 0"),
        ({"interval": 0}, "interval must be at least 1, not 0"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"quantile": 0.6}, "quantile must be above 0 and at most 0.5, not 0.6"),
        ({"resample_probability": 2}, "resample_probability must be from 0 to 1, not 2"),
        ({"factors": ()}, r"factors must be one or more numbers above 0, not \(\)"),
        ({"burn_in": -1}, "burn_in must be at least 0, not -1"),
        ({"lost": "ignore"}, "lost must be .* not 'ignore'"),
        ({"keep": 0}, "keep must be a whole number, 1 or more, not 0"),
        ({"population": 1, "initial": CORNERS}, "initial has 2 members, but population is 1"),
        ({"initial": [{"h2": 1}]}, r"initial gave the hyperparameters \['h2'\]"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PBT(SPACE, **options)


def test_what_a_member_raises_does_not_control_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = PBT(SPACE, population=1, steps=4)
    for _ in range(MOST_IN_VAIN):
        algorithm._count_in_vain(0, "ValueError: \x1b[2J")
    assert r"ValueError: \x1b[2J" in caplog.text and "\x1b" not in caplog.text
