"""Steps of one's own loop become the same items as the blocks of an environment."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import NotFinite
from ropewalk.rl.adders.n_step import NStepAdder
from ropewalk.rl.adders.step_adder import StepAdder
from ropewalk.rl.adders.unroll import UnrollAdder
from ropewalk.rl.replay.limiters import MinSize
from ropewalk.rl.replay.selectors.ordered import Fifo
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables
from tests.rl.adders.experience import Step, blocks_of, experience


def tables() -> ReplayTables:
    """A table from which each item is sampled once, in order."""
    table = ReplayTable(
        "replay", sampler=Fifo(), remover=Fifo(), max_size=1000, limiter=MinSize(1), max_times_sampled=1
    )
    return ReplayTables([table])


def items_of(replay: ReplayTables) -> dict[str, np.ndarray]:  # pyright: ignore[reportMissingTypeArgument]
    size = replay.info()["replay"].size
    return dict(replay.sample("replay", size).columns) if size else {}


def seen(step: Step) -> dict[str, object]:
    return {"image": np.full(3, step.observation, np.float32), "speed": np.float64(step.observation)}


def write(adder: StepAdder, steps: list[Step]) -> None:
    adder.first(seen(steps[0]))
    for step, after in itertools.pairwise(steps):
        if step.mask:
            adder.step(
                step.action,
                seen(after),
                step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
                extras={"value": np.float32(step.value)},
            )
        else:
            adder.first(seen(after))
    adder.flush()


@given(seed=st.integers(0, 500), num_steps=st.integers(1, 20), num=st.integers(1, 7), n=st.integers(1, 3))
@settings(max_examples=30)
def test_items_are_those_of_the_same_steps_in_blocks(seed: int, num_steps: int, num: int, n: int) -> None:
    (steps,), _ = experience(seed, 1, [num_steps])
    written, added = tables(), tables()
    write(StepAdder(NStepAdder(n, 0.9), written, num_steps=num, run_id="0#0"), steps)
    added.insert(NStepAdder(n, 0.9).add(blocks_of([steps], [num_steps])[0]))
    found, expected = items_of(written), items_of(added)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == expected[name].dtype


def test_a_step_outside_of_an_episode_is_refused() -> None:
    adder = StepAdder(NStepAdder(1, 0.9), tables())
    with pytest.raises(RuntimeError, match="step was called before first"):
        adder.step(0, np.zeros(2), 0.0, terminated=False)
    adder.first(np.zeros(2))
    with pytest.raises(RuntimeError, match="first was called in the middle of an episode"):
        adder.first(np.zeros(2))
    adder.step(0, np.zeros(2), 0.0, terminated=True)
    with pytest.raises(RuntimeError, match="after the end of an episode"):
        adder.step(0, np.zeros(2), 0.0, terminated=False)


def test_observations_that_the_environment_writes_to_again_are_copied() -> None:
    replay, observation = tables(), np.zeros(2)
    adder = StepAdder(NStepAdder(1, 0.9), replay)
    adder.first(observation)
    for number in range(1, 4):
        observation += 1
        adder.step(number, observation, 0.0, terminated=number == 3)
    adder.flush()
    assert items_of(replay)["observation"].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_a_step_that_is_not_finite_is_refused_and_the_others_go_on() -> None:
    """It was kept, so that each later call raised the error again, and the steps around it were lost."""
    adder = StepAdder(NStepAdder(1, 0.9), replay := tables(), num_steps=2)
    with pytest.raises(NotFinite, match="observation is inf at step 0 of run"):
        adder.first(np.array([1.0, np.inf]))
    adder.first(np.zeros(2))
    adder.step(0, np.ones(2), 1.0, terminated=False)
    with pytest.raises(NotFinite, match=r"reward is nan at step 1 of run .*, which was not taken") as caught:
        adder.step(1, np.ones(2), np.nan, terminated=False)
    assert (caught.value.column, caught.value.step) == ("reward", 1)
    with pytest.raises(NotFinite, match="observation is nan at step 1"):
        adder.step(1, np.full(2, np.nan), 1.0, terminated=False)
    adder.step(2, np.ones(2), 2.0, terminated=True)
    adder.flush()
    assert items_of(replay)["action"].tolist() == [0, 2]


def test_a_step_of_another_shape_is_refused() -> None:
    """`np.stack` raised up to 32 steps later, without a name."""
    adder = StepAdder(NStepAdder(1, 0.9), tables(), num_steps=8)
    adder.first(np.zeros(2))
    adder.step(0, np.ones(2), 1.0, terminated=False)
    with pytest.raises(ValueError, match=r"'observation': \(3,\).* and those before have .*'observation': \(2,\)"):
        adder.step(0, np.ones(3), 1.0, terminated=False)
    with pytest.raises(ValueError, match=r"'action': \(2,\)"):
        adder.step(np.zeros(2), np.ones(2), 1.0, terminated=True)
    adder.step(0, np.ones(2), 1.0, terminated=True)
    adder.flush()


def test_steps_that_find_no_room_are_inserted_later_in_order() -> None:
    replay = ReplayTables([ReplayTable.queue("replay", 1)])
    adder = StepAdder(UnrollAdder(), replay, num_steps=2, ahead=1)
    taken: list[int] = []

    def take() -> None:
        actions = replay.sample("replay", 1).columns["action"]
        assert actions.shape == (1, 2, 1)
        taken.extend(actions.ravel().tolist())

    adder.first(np.zeros(1))
    refusals = 0
    for number in range(10):
        try:
            adder.step(number, np.full(1, float(number)), 0.0, terminated=False)
        except RuntimeError:
            refusals += 1
            take()
    while len(taken) < 10:
        with contextlib.suppress(RuntimeError):
            adder.flush()
        take()
    assert taken == list(range(10))
    assert refusals > 0


def test_less_than_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="num_steps must be a whole number, 1 or more, not 0"):
        StepAdder(NStepAdder(1, 0.9), tables(), num_steps=0)
