"""Collectors whose policy is elsewhere, in one process and in programs whose servers are killed."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import ropewalk as rw
from ropewalk.rl.actors.collector import Collector
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.environments.spec import Array, Observation
from ropewalk.rl.environments.vector import make_vector
from ropewalk.rl.inference.caller_rows import Rows
from ropewalk.rl.inference.remote_policy import RemotePolicy, RemoteState
from ropewalk.rl.inference.server import InferenceServer
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.seeds import generator
from ropewalk.rl.variables import Variables
from tests.rl.actors.policies import Remembering, TwoLayers
from tests.scenarios.tasks import note, noted

pytestmark = pytest.mark.usefixtures("shared_session")

CART_POLE = Gymnasium("CartPole-v1", max_episode_steps=25)
NUM_ENVS, NUM_STEPS, NUM_BLOCKS = 3, 8, 5
SEED = 11


class Weights:
    """A learner that has learned."""

    def __init__(self, version: int = 6) -> None:
        self.version = version

    def newest_variables(self, have: int) -> Variables | None:
        return None if have == self.version else self.variables()

    def variables(self) -> Variables:
        remembering, layers = Remembering(4, 2, seed=self.version), TwoLayers(4, 2, seed=self.version).layers
        arrays = {"weight": remembering.weight, **{f"layer{k}": layer for k, layer in enumerate(layers)}}
        return Variables(self.version, 0.0, arrays)


def with_memory(group: int) -> Policy:
    return Remembering(4, 2)


def without_memory(group: int) -> Policy:
    return TwoLayers(4, 2)


class MortalServer(InferenceServer):
    """Dies in its eleventh batch, before it answers."""

    @rw.batched(max_size=64, max_wait_s=0.005, concatenate=True)
    @rw.idempotent
    def act(
        self, rows: Rows, observation: Observation, first: NDArray[np.bool_], greedy: bool = False
    ) -> tuple[Array, ...]:
        answer = super().act(rows, observation, first, greedy)
        if self.served()["batches"] == 11 and rw.current_node().generation == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def collector(policy: Policy, group: int) -> Collector:
    return Collector(policy, make_vector(CART_POLE, NUM_ENVS, SEED, group), SEED, group)


def blocks_of(policy: Policy, group: int) -> list[Block]:
    made = collector(policy, group)
    blocks = [made.collect(NUM_STEPS) for _ in range(NUM_BLOCKS)]
    made.close()
    return blocks


def local_blocks(policy: Policy, group: int) -> list[Block]:
    policy.load(Weights().variables())
    return blocks_of(policy, group)


def different_columns(found: list[Block], expected: list[Block], rounding: float = 0.0) -> list[str]:
    """Columns that differ, each with the number of its block; log-probabilities may differ by `rounding`."""
    different: list[str] = []
    for one, other in zip(found, expected, strict=True):
        assert one.columns.keys() == other.columns.keys()
        allowed = {name: rounding if name == "log_prob" else 0.0 for name in one.columns}
        names = [
            name
            for name, array in one.columns.items()
            if not np.allclose(array, other.columns[name], rtol=0, atol=allowed[name])
        ]
        different += [f"{name} of block {one.number}" for name in names]
    return different


# --- in one process ---


@pytest.mark.parametrize("make", [with_memory, without_memory])
def test_blocks_are_those_of_a_policy_in_the_actor(make: Any) -> None:
    server = InferenceServer(make, Weights())
    for group in (0, 2):
        policy = RemotePolicy(server, group)
        assert different_columns(blocks_of(policy, group), local_blocks(make(group), group)) == []
        assert policy.num_forgotten == 0
        assert policy.take_version() == 6
        assert policy.take_version() == -1


@pytest.mark.parametrize("make", [with_memory, without_memory])
def test_groups_that_ask_by_one_call_get_what_each_would_get_alone(make: Any) -> None:
    server, groups = InferenceServer(make, Weights()), (0, 2, 5)
    made = [collector(RemotePolicy(server, group, keeps_to=1), group) for group in groups]
    found: list[list[Block]] = [[], [], []]
    for _ in range(NUM_BLOCKS):
        steps = [each.steps(NUM_STEPS) for each in made]
        requests = [next(each) for each in steps]
        for step in range(NUM_STEPS):
            choices = RemotePolicy.act_together(requests)
            for at, choice in enumerate(choices):
                try:
                    requests[at] = steps[at].send((choice, 0.0))
                except StopIteration as end:
                    assert step == NUM_STEPS - 1
                    found[at].append(end.value)
    assert server.served()["batches"] == NUM_STEPS * NUM_BLOCKS
    for group, blocks, each in zip(groups, found, made, strict=True):
        each.close()
        assert different_columns(blocks, local_blocks(make(group), group), rounding=1e-6) == []


def test_a_collector_goes_on_from_a_history_with_another_server() -> None:
    expected = local_blocks(with_memory(0), 0)
    one = collector(RemotePolicy(InferenceServer(with_memory, Weights())), 0)
    found = [one.collect(NUM_STEPS) for _ in range(2)]
    history = one.history()
    one.close()
    policy = RemotePolicy(InferenceServer(with_memory, Weights()))
    other = Collector(policy, make_vector(CART_POLE, NUM_ENVS, SEED, 0), SEED, 0, history=history)
    found += [other.collect(NUM_STEPS) for _ in range(NUM_BLOCKS - 2)]
    other.close()
    assert different_columns(found, expected) == []
    assert policy.num_forgotten == 0


def test_state_is_fetched_once_and_only_when_it_is_looked_at() -> None:
    server, asked = InferenceServer(with_memory, Weights()), list[int]()
    state_before = server.state_before
    server.state_before = lambda *args: asked.append(args[2]) or state_before(*args)  # type: ignore[method-assign]
    blocks_of(RemotePolicy(server), 0)
    assert asked == [NUM_STEPS * number for number in range(1, NUM_BLOCKS)]


def test_no_state_is_sent_to_a_server_that_has_it_or_needs_none() -> None:
    server, sent = InferenceServer(with_memory, Weights()), list[int]()
    server.set_state = lambda *args: sent.append(args[2])  # type: ignore[method-assign]
    blocks_of(RemotePolicy(server), 0)
    assert sent == []


def test_a_state_of_before_is_acted_from_again() -> None:
    policy = RemotePolicy(InferenceServer(with_memory, Weights()))
    rng, observation, first = generator(1), np.ones((2, 4), np.float32), np.ones(2, np.bool_)
    one = policy.act(observation, first, policy.initial_state(2), rng).state
    two = policy.act(observation, ~first, one, rng)
    again = policy.act(observation, ~first, one, rng)
    assert two.extras["steps"].tolist() == again.extras["steps"].tolist() == [2, 2]
    assert policy.num_forgotten == 0


def test_the_version_of_a_block_is_the_oldest_that_acted_in_it() -> None:
    source = Weights(6)
    server = InferenceServer(without_memory, source)
    policy, rng = RemotePolicy(server), generator(1)
    observation, first = np.ones((2, 4), np.float32), np.ones(2, np.bool_)
    policy.act(observation, first, {}, rng)
    source.version = 7
    server._refresh()
    policy.act(observation, first, {}, rng)
    assert policy.take_version() == 6
    policy.act(observation, first, {}, rng)
    assert policy.take_version() == 7


def test_state_that_the_server_has_no_more_is_refused() -> None:
    policy = RemotePolicy(InferenceServer(with_memory, Weights()))
    rng, observation, first = generator(1), np.ones((2, 4), np.float32), np.ones(2, np.bool_)
    old = policy.act(observation, first, policy.initial_state(2), rng).state
    new = policy.act(observation, ~first, old, rng).state
    assert isinstance(old, RemoteState)
    assert old["steps"].tolist() == [1, 1]  # before the last step
    assert new["steps"].tolist() == [2, 2]
    last = policy.act(observation, ~first, new, rng).state
    stale = RemoteState(policy, 1, ("steps",), 2)
    with pytest.raises(RuntimeError, match="before step 1 was asked for after step 2"):
        stale["steps"]
    assert last["steps"].tolist() == [3, 3]


def test_greedy_actions_are_those_of_the_policy() -> None:
    policy, local = RemotePolicy(InferenceServer(without_memory, Weights())), without_memory(0)
    local.load(Weights().variables())
    observation, first = generator(3).standard_normal((9, 4), np.float32), np.ones(9, np.bool_)
    rng = generator(1)
    before = rng.bit_generator.state
    found = policy.act(observation, first, {}, rng, greedy=True)
    assert np.array_equal(found.action, local.act(observation, first, {}, generator(1), greedy=True).action)
    assert rng.bit_generator.state == before


def test_weights_given_to_a_remote_policy_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="version 6 of the weights was given to a remote policy"):
        RemotePolicy(InferenceServer(with_memory, Weights())).load(Weights().variables())


# --- in programs ---


def tell(path: str, *facts: Any) -> None:
    note(path, json.dumps(facts, separators=(",", ":")))


def told(path: Path) -> list[Any]:
    return [json.loads(facts) for facts in noted(str(path))]


def act_from_afar(server: InferenceServer, path: str, make: Any, exact: bool) -> None:
    group = rw.current_node().replica
    policy = RemotePolicy(server, group)
    rounding = 0.0 if exact else 1e-5
    different = different_columns(blocks_of(policy, group), local_blocks(make(group), group), rounding)
    tell(path, group, different, policy.num_forgotten, policy.take_version())


def inference_program(
    path: Path,
    make: Any,
    actors: int,
    server: type[InferenceServer] = InferenceServer,
    *,
    replicas: int = 1,
    exact: bool = True,
) -> rw.Program:
    program = rw.Program("inference")
    learner = program.add(rw.Service(Weights))
    inference = program.add(
        rw.Service(server, make, learner.client(on_lost="retry"), exact=exact),
        name="inference",
        replicas=replicas,
        restart="on_failure",
    )
    program.add(rw.Worker(act_from_afar, inference, str(path), make, exact), name="actors", replicas=actors)
    return program


@pytest.mark.parametrize(
    ("make", "replicas", "exact"),
    [
        (with_memory, 2, True),
        (without_memory, 1, False),
        pytest.param(with_memory, 1, True, marks=pytest.mark.soak),
        pytest.param(without_memory, 2, True, marks=pytest.mark.soak),
        pytest.param(with_memory, 1, False, marks=pytest.mark.soak),
        pytest.param(without_memory, 1, True, marks=pytest.mark.soak),
    ],
)
def test_actors_of_a_program_collect_what_they_would_alone(
    tmp_path: Path, make: Any, replicas: int, exact: bool
) -> None:
    path = tmp_path / "noted"
    inference_program(path, make, actors=3, replicas=replicas, exact=exact).launch().wait()
    assert sorted(told(path)) == [[group, [], 0, 6] for group in range(3)]


def test_a_policy_without_memory_notices_nothing_of_the_death_of_its_server(tmp_path: Path) -> None:
    path = tmp_path / "noted"
    inference_program(path, without_memory, actors=1, server=MortalServer).launch().wait()
    assert told(path) == [[0, [], 0, 6]]


def remember_from_afar(server: InferenceServer, path: str) -> None:
    policy = RemotePolicy(server)
    observation, never = np.ones((2, 4), np.float32), np.zeros(2, np.bool_)
    state: Any = policy.initial_state(2)
    remembered: list[int] = []
    for step in range(16):
        choice = policy.act(observation, never | (step == 0), state, generator(1, step))
        state = choice.state
        remembered.append(int(choice.extras["steps"][0]))
        if step == 12:
            tell(path, *state["steps"].tolist())
    tell(path, *remembered)
    tell(path, policy.num_forgotten)


def test_memory_begins_anew_where_a_server_was_killed_and_that_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "noted"
    program = rw.Program("forgetting")
    learner = program.add(rw.Service(Weights))
    inference = program.add(
        rw.Service(MortalServer, with_memory, learner.client(on_lost="retry")), restart="on_failure"
    )
    program.add(rw.Worker(remember_from_afar, inference, str(path)))
    program.launch().wait()
    # The eleventh batch was lost with its server: the twelfth act is the first one of the next server.
    assert told(path) == [[3, 3], [*range(1, 11), *range(1, 7)], [2]]


class Teacher(Weights):
    """A learner that has newer weights as soon as it is asked to."""

    def teach(self) -> None:
        self.version += 1


def wait_for_version(server: InferenceServer, learner: Teacher, path: str) -> None:
    policy = RemotePolicy(server)
    observation, first, rng = np.ones((2, 4), np.float32), np.ones(2, np.bool_), generator(1)
    choice = policy.act(observation, first, {}, rng)
    assert policy.take_version() == 6
    learner.teach()
    while policy.take_version() < 7:
        choice = policy.act(observation, first, {}, rng, greedy=True)
    local = TwoLayers(4, 2, seed=7)
    assert np.array_equal(choice.action, local.act(observation, first, {}, rng, greedy=True).action)
    note(path, "newer")


def test_newer_weights_arrive_while_actors_act(tmp_path: Path) -> None:
    program = rw.Program("teaching")
    learner = program.add(rw.Service(Teacher))
    inference = program.add(rw.Service(InferenceServer, partial(without_memory), learner, refresh_s=0.01))
    program.add(rw.Worker(wait_for_version, inference, learner, str(tmp_path / "noted")))
    program.launch().wait()
    assert noted(str(tmp_path / "noted")) == ["newer"]


class Forgetful(InferenceServer):
    """Says only when it is asked for the third time what the names of its extras are."""

    num_asked = 0

    def extra_names(self, greedy: bool = False) -> tuple[str, ...] | None:
        self.num_asked += 1
        return super().extra_names(greedy) if self.num_asked > 2 else None


def test_a_call_is_repeated_until_the_names_of_its_extras_are_known() -> None:
    """The answer came from another replica, or its server died: the successor has given no answer yet."""
    observation, first = np.ones((NUM_ENVS, 4), np.float32), np.ones(NUM_ENVS, np.bool_)
    chosen: list[list[tuple[Any, list[str]]]] = []
    for kind in (Forgetful, InferenceServer):
        server, rng = kind(with_memory, Weights()), np.random.default_rng(1)
        policy = RemotePolicy(server, 0, "a")
        choices = [policy.act(observation, first, {}, rng) for _ in range(2)]
        chosen.append([(choice.action.tolist(), sorted(choice.extras)) for choice in choices])
        assert server.served()["batches"] == (4 if kind is Forgetful else 2)
    assert chosen[0] == chosen[1] and all(names for _, names in chosen[0])


class Pair:
    """Two servers, of which one gets all questions for actions and the other all other ones, as a busy one may."""

    def __init__(self) -> None:
        self.replicas = [InferenceServer(without_memory, Weights()), InferenceServer(without_memory, Weights())]

    def __len__(self) -> int:
        return len(self.replicas)

    def __getitem__(self, index: int) -> InferenceServer:
        return self.replicas[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replicas[0 if name == "act" else 1], name)


def test_names_of_extras_are_found_at_the_replica_that_acted() -> None:
    pair = Pair()
    policy = RemotePolicy(cast(InferenceServer, pair), 0, "a")
    observation, first = np.ones((NUM_ENVS, 4), np.float32), np.ones(NUM_ENVS, np.bool_)
    choice = policy.act(observation, first, {}, np.random.default_rng(1))
    assert choice.extras and [server.served()["batches"] for server in pair.replicas] == [1, 0]
