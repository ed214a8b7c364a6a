"""A schedule that was found, trained again: the same states with the same trials, other ones with others."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from ropewalk.population.algorithms.pbt import PBT
from ropewalk.population.algorithms.pbt_history import PBTSchedule
from ropewalk.population.algorithms.pbt_replay import PBTReplay
from ropewalk.population.outcome import Outcome
from ropewalk.population.state_file import pack_state, unpack_state
from tests.population.algorithms.surrogate import SPACE, outcomes_of, run, train_with_noise


@pytest.fixture(scope="module")
def found() -> PBT:
    """A run in which the best state has passed through several members."""
    algorithm = PBT(SPACE, population=6, interval=3, steps=60, seed=1)
    run(algorithm, 2, function=train_with_noise)
    assert len({stretch.member for stretch in algorithm.schedule().stretches}) > 1
    return algorithm


def state_of(algorithm: PBT | PBTReplay) -> np.ndarray:
    best = algorithm.incumbent()
    assert best is not None
    return best.state


def test_the_schedule_of_each_member_gives_its_state_bit_for_bit(found: PBT) -> None:
    for member in range(6):
        schedule = found.schedule(member)
        replay = PBTReplay(schedule)
        run(replay, 1, function=train_with_noise)
        kept = found._members[member].state  # pyright: ignore[reportPrivateUsage]
        assert kept is not None and np.array_equal(state_of(replay), kept.get())
        assert replay.generation == len(schedule) and replay.finished


def test_other_trials_give_another_state_and_the_same_again(found: PBT) -> None:
    states: list[np.ndarray] = []
    for seed in (5, 5, 6):
        replay = PBTReplay(found.schedule(), seed=seed)
        run(replay, 1, function=train_with_noise)
        states.append(state_of(replay))
    assert np.array_equal(states[0], states[1])
    assert not np.array_equal(states[0], states[2]) and not np.array_equal(states[0], state_of(found))


def test_a_schedule_is_a_file(found: PBT, tmp_path: Path) -> None:
    schedule = found.schedule()
    schedule.save(tmp_path / "schedule.json")
    assert PBTSchedule.load(tmp_path / "schedule.json") == schedule


def test_a_schedule_tells_when_hyperparameters_changed_and_leaves_no_gap(found: PBT) -> None:
    parts = list(found.schedule())
    assert [part[0] for part in parts] == [0, *(part[1] for part in parts[:-1])]
    assert parts[-1][1] == 60
    assert all(before[2] != after[2] for before, after in itertools.pairwise(parts))
    assert len(parts) > 1


def test_it_goes_on_from_a_checkpoint(found: PBT, tmp_path: Path) -> None:
    broken = PBTReplay(found.schedule(), folder=tmp_path)
    run(broken, 1, function=train_with_noise, most=4)
    resumed = PBTReplay(found.schedule(), folder=tmp_path)
    resumed.load_state_dict(unpack_state(pack_state(broken.state_dict()), "here"))
    run(resumed, 1, function=train_with_noise)
    assert np.array_equal(state_of(resumed), state_of(found))
    with pytest.raises(ValueError, match="stretches 20 there and 1 here"):
        PBTReplay(PBTSchedule(found.schedule().stretches[:1])).load_state_dict(broken.state_dict())


def test_an_interval_is_asked_for_once_until_it_is_told_or_dropped(found: PBT) -> None:
    replay = PBTReplay(found.schedule())
    asked = replay.ask(4)
    assert len(asked) == 1 and replay.ask(4) == []
    replay.drop(asked)
    assert replay.ask(4) == asked
    replay.tell(asked, outcomes_of(replay, asked, train_with_noise))
    assert replay.ask(1)[0].number == 1


def test_an_interval_that_fails_ends_it_and_says_where(found: PBT) -> None:
    replay = PBTReplay(found.schedule())
    with pytest.raises(RuntimeError, match=r"interval 0 of 20 of the schedule failed, .*: no memory"):
        replay.tell(replay.ask(1), [Outcome(0.0, failure="no memory")])


def test_there_must_be_a_schedule() -> None:
    with pytest.raises(ValueError, match="the schedule is empty; PBT has one after its first scores"):
        PBTReplay(PBT(SPACE, population=2).schedule())
