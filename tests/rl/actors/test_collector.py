from __future__ import annotations

import itertools
import os
import pickle
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.rl.actors.collector import BLOCKS_OF_A_LIFE, Collector, CollectorHistory
from ropewalk.rl.blocks import Block, EpisodeEnd
from ropewalk.rl.environments.environment import VectorEnvironment
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.environments.serial import SerialVectorEnvironment
from ropewalk.rl.environments.vector import make_vector
from ropewalk.rl.policies.policy import ActionChoice, Policy
from ropewalk.rl.seeds import derived_seed, generator
from ropewalk.rl.variables import Variables
from tests.rl.actors.policies import Always, Remembering, TwoLayers
from tests.rl.environments.scripted import Scripted

CART_POLE = Gymnasium("CartPole-v1", max_episode_steps=25)


def scripted(*scripts: tuple[str, ...]) -> VectorEnvironment:
    made = iter(scripts)
    return SerialVectorEnvironment(lambda seed: Scripted(*next(made)), len(scripts), seed=0)


def same(one: Block, other: Block) -> bool:
    assert one.columns.keys() == other.columns.keys()
    for name, column in one.columns.items():
        assert column.dtype == other.columns[name].dtype and column.shape == other.columns[name].shape
        assert column.tobytes() == other.columns[name].tobytes(), f"column {name} differs"
    facts = [(b.run_id, b.number, b.version, b.steps, b.episodes) for b in (one, other)]
    return facts[0] == facts[1]


def test_a_block_contains_what_happened() -> None:
    collector = Collector(Always(np.array([2, 1])), scripted(("t2", "c1"), ("c3", "b2")), seed=0, group=4, life=1)
    block = collector.collect(5)
    columns = {name: array.tolist() for name, array in block.columns.items()}
    # (episode, step) of both environments
    assert [row[0] for row in columns["observation"]] == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0]]
    assert [row[1] for row in columns["observation"]] == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1]]
    assert columns["first"] == [
        [True, True],
        [False, False],
        [False, False],
        [True, False],
        [False, True],
        [True, False],
    ]
    assert columns["action"] == [[2, 1]] * 5
    assert columns["reward"] == [[1, 1], [2, 2], [0, 3], [1, 0], [0, 1]]
    assert columns["terminated"] == [[False, False], [True, False], [False, False], [False, False], [False, False]]
    assert columns["truncated"] == [[False, False], [False, False], [False, True], [True, False], [False, False]]
    assert columns["mask"] == [[True, True], [True, True], [False, True], [True, False], [False, True]]
    assert (block.run_id, block.number, block.version, block.steps) == ("4#1", 0, 0, 7)
    assert (block.num_steps, block.num_envs) == (5, 2)
    info = {"is_success": 1.0}  # and not the name, which is no number
    assert block.episodes == (
        EpisodeEnd(0, 3.0, 2, True, info),
        EpisodeEnd(1, 6.0, 3, False, info),
        EpisodeEnd(0, 1.0, 1, False, info),
    )


def test_blocks_continue_each_other_and_episodes_span_them() -> None:
    collector = Collector(Always(np.array([0, 0])), scripted(("t5",), ("c3", "b2")), seed=0)
    blocks = [collector.collect(2) for _ in range(4)]
    assert [block.number for block in blocks] == [0, 1, 2, 3]
    for before, after in itertools.pairwise(blocks):
        for name in ("observation", "first"):
            assert before.columns[name][-1].tolist() == after.columns[name][0].tolist()
    ends = [[(end.env, end.score, end.length, end.terminated) for end in block.episodes] for block in blocks]
    assert ends == [[], [(1, 6.0, 3, False)], [(0, 15.0, 5, True), (1, 3.0, 2, True)], []]
    assert [block.steps for block in blocks] == [4, 3, 3, 3]


def test_columns_have_the_dtypes_of_the_spec_and_of_the_policy() -> None:
    block = Collector(Remembering(4, 2), make_vector(CART_POLE, 3, 0), seed=0).collect(7)
    shown = {name: (str(column.dtype), column.shape) for name, column in block.columns.items()}
    assert shown == {
        "observation": ("float32", (8, 3, 4)),
        "first": ("bool", (8, 3)),
        "action": ("int64", (7, 3)),
        "reward": ("float32", (7, 3)),
        "terminated": ("bool", (7, 3)),
        "truncated": ("bool", (7, 3)),
        "mask": ("bool", (7, 3)),
        "log_prob": ("float32", (7, 3)),
        "steps": ("int64", (7, 3)),
        "state.memory": ("float32", (3, 4)),
        "state.steps": ("int64", (3,)),
    }


def test_the_recurrent_state_is_that_before_the_block_and_resets_with_episodes() -> None:
    collector = Collector(Remembering(4, 2), make_vector(CART_POLE, 4, 0), seed=0)
    blocks = [collector.collect(30) for _ in range(3)]
    assert blocks[0].columns["state.steps"].tolist() == [0] * 4
    remembered = np.zeros(4, np.int64)
    for block in blocks:
        assert block.columns["state.steps"].tolist() == remembered.tolist()
        for step in range(30):
            remembered = np.where(block.columns["first"][step], 0, remembered) + 1
            assert block.columns["steps"][step].tolist() == remembered.tolist()
    # the policy also acts on the last observation of an episode, so that its state is there to be bootstrapped from
    ended = np.argwhere(np.logical_or(blocks[0].columns["truncated"], blocks[0].columns["terminated"]))
    assert len(ended), "no episode ended, and nothing was tested"


@pytest.mark.parametrize("make_policy", [TwoLayers, Remembering])
@pytest.mark.parametrize("rebuilt_after", [0, 1, 4])
def test_a_rebuilt_collector_continues_bit_for_bit(make_policy: Any, rebuilt_after: int) -> None:
    """Block lengths are odd to the episodes', so that rebuilding meets running, ended and new episodes."""

    def made(history: CollectorHistory | None = None) -> Collector:
        return Collector(make_policy(4, 2), make_vector(CART_POLE, 4, 3, group=2), seed=3, group=2, history=history)

    going = made()
    lengths = [7, 13, 20, 1, 9, 30]
    rebuilt: Collector | None = None
    for number, length in enumerate(lengths):
        if number == rebuilt_after:
            history = pickle.loads(pickle.dumps(going.history()))
            rebuilt = made(history)
            assert rebuilt.history() is history
        block = going.collect(length)
        if rebuilt:
            assert same(rebuilt.collect(length), block)
    assert rebuilt and going.history().block == len(lengths)


def rebuilt_blocks(history: CollectorHistory, lengths: list[int]) -> tuple[int, list[Block]]:
    envs = make_vector(CART_POLE, 4, 3, group=2)
    collector = Collector(Remembering(4, 2), envs, seed=3, group=2, history=history)
    return os.getpid(), [collector.collect(length) for length in lengths]


@pytest.mark.usefixtures("shared_session")
def test_another_process_continues_bit_for_bit() -> None:
    going = Collector(Remembering(4, 2), make_vector(CART_POLE, 4, 3, group=2), seed=3, group=2)
    going.collect(33)
    with rw.Pool(1) as pool:
        pid, blocks = pool.apply(rebuilt_blocks, (going.history(), [20, 7]))
    assert pid != os.getpid()
    for block in blocks:
        assert same(block, going.collect(block.num_steps))


class BySeed(Scripted):
    """Knows by its seed which episode it is in, so that a new one plays it again."""

    def __init__(self, env: int, *script: str) -> None:
        super().__init__(*script)
        self.known = [derived_seed(0, "episode", 0, env, episode) for episode in range(20)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.episode = self.known.index(seed) - 1
        return super().reset(seed=seed)


def test_every_moment_of_an_episode_can_be_continued() -> None:
    """Blocks of one step, so that each kind of moment comes: first, in between, ended."""

    def made(history: CollectorHistory | None = None) -> Collector:
        made = iter([BySeed(0, "t2", "c1", "b3"), BySeed(1, "c3", "t1", "t2")])
        envs = SerialVectorEnvironment(lambda seed: next(made), 2, seed=0)
        return Collector(Remembering(2, 3), envs, seed=3, history=history)

    going, ends = made(), 0
    for _ in range(12):
        rebuilt = made(going.history())
        for _ in range(4):
            rebuilt.collect(1)
        rebuilt, block = made(going.history()), going.collect(1)
        assert same(rebuilt.collect(1), block)
        ends += len(block.episodes)
    assert ends == 8


def test_blocks_follow_from_seed_group_and_life() -> None:
    def actions(seed: int, group: int, life: int = 0) -> Any:
        envs = make_vector(CART_POLE, 2, 0)  # the same environments for all: here, the generators of blocks are tested
        return Collector(TwoLayers(4, 2), envs, seed, group, life).collect(40).columns["action"].tobytes()

    assert actions(0, 0) == actions(0, 0)
    assert len({actions(*path) for path in [(0, 0), (1, 0), (0, 1), (0, 0, 1)]}) == 4


def test_the_generator_of_a_block_follows_from_its_number() -> None:
    class Noise(Always):
        def act(self, observation: Any, first: Any, state: Any, rng: Any, *, greedy: bool = False) -> ActionChoice:
            return ActionChoice(self.action, {"noise": rng.random(1)})

    collector = Collector(Noise(np.array([0])), scripted(("t9",)), seed=5, group=2)
    later = Collector(Noise(np.array([0])), scripted(("t9",)), seed=5, group=2, life=3)
    for number in range(3):
        for found, path in ((collector, number), (later, 3 * BLOCKS_OF_A_LIFE + number)):
            noise = found.collect(2).columns["noise"]
            assert noise.tolist() == generator(5, "block", 2, path).random((2, 1)).tolist()


def test_weights_that_were_loaded_act_from_the_next_block_on() -> None:
    policy = Remembering(4, 2)
    collector = Collector(policy, make_vector(CART_POLE, 2, 0), seed=0)
    assert collector.collect(3).version == 0
    collector.load(Variables(7, 0.5, {"weight": np.array([[5, 0]] * 4, np.float32)}))
    assert policy.weight[0].tolist() == [5, 0]
    assert [collector.collect(3).version for _ in range(2)] == [7, 7]


def test_the_time_of_a_block_is_divided_by_its_parts() -> None:
    """The clock moves by one second whenever it is read, and only then."""
    seconds = iter(range(1000))
    collector = Collector(Always(np.array([0])), scripted(("t9",)), seed=0, clock=lambda: float(next(seconds)))
    # a reading before and after the reset; three in each step; one at the end
    assert collector.collect(4).seconds == {"env": 4, "policy": 4, "reset": 1, "other": 5}
    steps = collector.steps(2)
    next(steps)
    for _ in range(50):  # of which 7 are spent on this group's action, and the others elsewhere
        next(seconds)
    steps.send((ActionChoice(np.array([0])), 7.0))
    with pytest.raises(StopIteration) as end:
        steps.send((ActionChoice(np.array([0])), 0.5))
    assert end.value.value.seconds == {"env": 2, "policy": 7.5, "reset": 1, "other": 3}


class Odd(Policy):
    """Returns what it was made with."""

    def __init__(self, choice: ActionChoice) -> None:
        self.choice = choice

    def act(self, observation: Any, first: Any, state: Any, rng: Any, *, greedy: bool = False) -> ActionChoice:
        return self.choice

    def load(self, variables: Variables) -> None:
        del variables


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (ActionChoice(np.zeros((2, 1), np.int64)), r"actions of shape \(2, 1\), and \(2,\) is needed"),
        (ActionChoice(np.zeros(1, np.int64)), r"actions of shape \(1,\), and \(2,\) is needed"),
        (
            ActionChoice(np.zeros(2, np.int64), {"value": np.zeros(1)}),
            r"extra 'value' with shape \(1,\).*must have 2 entries",
        ),
    ],
)
def test_arrays_of_other_shapes_are_refused(choice: ActionChoice, message: str) -> None:
    """Numpy would repeat the one row for all environments."""
    with pytest.raises(ValueError, match=message):
        Collector(Odd(choice), scripted(("t9",), ("t9",)), seed=0).collect(3)


def test_a_block_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="num_steps is 0"):
        Collector(Always(np.array([0])), scripted(("t9",)), seed=0).collect(0)


def test_a_policy_may_update_its_recurrent_state_in_place() -> None:
    class Counts(Always):
        def initial_state(self, num_envs: int) -> dict[str, Any]:
            return {"steps": np.zeros(num_envs, np.int64)}

        def act(self, observation: Any, first: Any, state: Any, rng: Any, *, greedy: bool = False) -> ActionChoice:
            np.add(state["steps"], 1, out=state["steps"])
            return ActionChoice(self.action, state=state)

    collector = Collector(Counts(np.array([0])), scripted(("t9",)), seed=0)
    first = collector.collect(3)
    history, second = collector.history(), collector.collect(2)
    assert [block.columns["state.steps"].tolist() for block in (first, second)] == [[0], [3]]
    assert history.state["steps"].tolist() == [3]


def test_blocks_share_no_memory() -> None:
    collector = Collector(Remembering(4, 2), make_vector(CART_POLE, 2, 0), seed=0)
    blocks = [collector.collect(5) for _ in range(2)]
    for one in blocks[0].columns.values():
        assert not any(np.shares_memory(one, other) for other in blocks[1].columns.values())
