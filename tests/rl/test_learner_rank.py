"""Several learners as processes: they learn, die, stop and go on together."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest

import ropewalk as rw
from ropewalk import rl
from ropewalk.errors import CheckpointCorrupt, NotFinite
from ropewalk.program import checkpoints
from ropewalk.rl import distributed
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.blocks import EpisodeEnd
from ropewalk.rl.checkpoints import ExperimentCheckpoints
from ropewalk.rl.distributed import ProcessCounts, build_program
from ropewalk.rl.learner_rank import LearnerRank
from ropewalk.rl.learners.data_parallel import RankReport
from ropewalk.rl.logs.memory import MemoryLogger
from ropewalk.rl.result import TrainingOutcome
from ropewalk.rl.variables import epoch_of
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("shared_session")


class Copying(gymnasium.Env[Any, Any]):
    """The right action is the number that is observed; episodes of ten steps, with a reward of 1 for each right one."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left, self._bit = 10, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self._bit)
        self._left -= 1
        return self._observation(), reward, self._left == 0, False, {}

    def _observation(self) -> Any:
        self._bit = int(self.np_random.integers(2))
        return np.array([2.0 * self._bit - 1.0], np.float32)


def copying(seed: int) -> Copying:
    del seed
    return Copying()


EXPERIMENT = rl.Experiment(
    rl.IMPALA(unroll=8, envs=4, batch_size=2, optimizer=rl.TorchAdam(0.02), discount=0.5),
    copying,
    rl.MLP((16,)),
    steps=8_000,
    seed=3,
    digest_every=5,
)


def run_ranks(experiment: rl.Experiment, actors: int) -> tuple[list[TrainingOutcome], dict[str, int]]:
    """Run with two learners; returns the outcomes of both, and the restarts of each node."""
    program = build_program(Assembly(experiment, actors), ProcessCounts(actors, "async", learners=2), hold=True)
    with program.launch() as running:
        ranks = [running.client("learner", on_lost="retry")[rank] for rank in range(2)]
        # Rank 0 may have ended before rank 1 has read its last report.
        wait_until(lambda: all(rank.status().done for rank in ranks), what="the end of both")
        assert set(ranks[0].status().actors) == set(range(actors)), "rank 0 knows all"
        return [rank.outcome() for rank in ranks], restarts_of(running)


def restarts_of(running: rw.RunningProgram) -> dict[str, int]:
    """By node, the restarts of all its replicas."""
    restarts: dict[str, int] = {}
    for node in running.status().nodes:
        restarts[node.name] = restarts.get(node.name, 0) + node.restarts
    return restarts


def stored_digests(running: rw.RunningProgram) -> list[str]:
    """The digests in the newest stored state of a learner, from which all of them would go on."""
    folder = running._conductor.checkpoints
    try:
        states = [checkpoints.load(folder, "learner", rank) for rank in range(2)]
    except (FileNotFoundError, CheckpointCorrupt):  # a learner that lives replaced it meanwhile, by one of another size
        return stored_digests(running)
    return max((state.state["digests"] for state in states if state), key=len, default=[])


def test_two_learners_learn_and_have_equal_weights() -> None:
    (first, second), restarts = run_ranks(EXPERIMENT, 3)
    assert len(first.digests) > 5 and first.digests == second.digests
    assert first.counters == second.counters
    assert first.counters.steps >= EXPERIMENT.steps
    assert first.counters.episodes > 0.7 * EXPERIMENT.steps / 11
    assert first.counters.score is not None and first.counters.score > 8, "chance gives 5"
    assert set(restarts.values()) == {0}


def test_all_learners_go_on_together_when_one_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_CHECKPOINT_S", 0.05)
    # It is stopped, and has no end of its own: on a busy host it would come before the second kill.
    experiment = dataclasses.replace(EXPERIMENT, steps=10**7, checkpoint=tmp_path / "run")
    stored: list[str] = []
    with experiment.program(2, learners=2).launch() as running:
        for victim in (1, 0):
            longer = len(stored) + 3
            wait_until(lambda longer=longer: len(stored_digests(running)) >= longer, what="15 more updates in a state")
            stored = stored_digests(running)
            running.kill("learner", victim)
        learner = running.client("learner", on_lost="retry")[0]
        wait_until(lambda: len(learner.outcome().digests) > len(stored) + 3, what="updates after the last kill")
        restarts = restarts_of(running)
        running.stop()
    assert restarts["learner"] >= 2 and restarts["actors"] == 0, "actors carry on"
    first, second = (ExperimentCheckpoints(tmp_path / "run", 60.0, "", rank).load() for rank in range(2))
    assert first is not None and second is not None
    assert first["digests"][: len(stored)] == stored, "they went on from a state"
    assert first["digests"] == second["digests"]
    assert len(first["digests"]) == first["counters"]["updates"] // 5, "updates were taken over, and not done again"
    assert first["counters"] == second["counters"]


def ranks_of_a_life(
    generation: int, monkeypatch: pytest.MonkeyPatch, asks: threading.Event, asked: threading.Event
) -> list[LearnerRank]:
    """Two ranks in this process; one asks the other for what it has learned when `asks` is set, and sets `asked`."""
    ranks: list[LearnerRank] = []

    def peer(number: int) -> Any:
        def learned() -> dict[str, Any]:
            assert asks.wait(PATIENCE_S)
            state = ranks[number].learned()
            asked.set()
            return state

        receive = SimpleNamespace(future=lambda packet: ranks[number].receive(packet))
        hear = SimpleNamespace(future=lambda *facts: ranks[number].hear(*facts))
        return SimpleNamespace(receive=receive, learned=learned, hear=hear)

    for number in range(2):
        node = SimpleNamespace(generation=generation, replica=number, replicas=2, name="learner", label="learner")
        monkeypatch.setattr(rw, "current_node", lambda node=node: node)
        ranks.append(LearnerRank(Assembly(EXPERIMENT, 2), cast("Any", [peer(0), peer(1)]), hold=True))
    return ranks


def in_both(do: Callable[[LearnerRank], object], ranks: list[LearnerRank]) -> None:
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(do, ranks))


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_restart_no_score_counts_twice_and_none_is_missing(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def arrive(rank: LearnerRank, *scores: float) -> None:
        rank._arrived.add(10, [EpisodeEnd(0, score, 10, True, {}) for score in scores])

    asks, asked = threading.Event(), threading.Event()
    ranks = ranks_of_a_life(0, monkeypatch, asks, asked)
    arrive(ranks[0], 1.0, 2.0)
    arrive(ranks[1], 3.0)
    in_both(lambda rank: rank._tell(stopping=False), ranks)
    ranks[0].counters.updates = 5  # its state is newer than that of rank 1, which takes it over
    states = [rank.state_dict() for rank in ranks]

    ranks = ranks_of_a_life(1, monkeypatch, asks, asked)
    for rank, state in zip(ranks, states, strict=True):
        rank.load_state_dict(state)
        arrive(rank, 4.0 + rank._rank)
    add_up = ranks[0]._add_up

    def add_up_in_order(reports: Sequence[RankReport]) -> None:
        """Rank 1 asks rank 0 for its counters before or after that has added up all reports."""
        if when == "before":
            asks.set()
            assert asked.wait(PATIENCE_S)
        add_up(reports)
        asks.set()

    monkeypatch.setattr(ranks[0], "_add_up", add_up_in_order)
    in_both(lambda rank: rank._begin_alike(), ranks)
    for rank in ranks:
        assert list(rank.counters.recent) == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert (rank.counters.steps, rank.counters.episodes, rank.counters.updates) == (40, 5, 5)


@pytest.mark.parametrize("learners", [1, 2])
def test_actors_collect_again_for_a_learner_that_dies_after_its_end(
    learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_CHECKPOINT_S", 1e6)  # the one that is killed has stored nothing
    experiment = dataclasses.replace(EXPERIMENT, steps=1_500)
    program = build_program(Assembly(experiment, 2), ProcessCounts(2, "async", learners=learners), hold=True)
    with program.launch() as running:
        learner = running.client("learner", on_lost="retry")[0]
        wait_until(lambda: learner.status().done, what="the end")
        running.kill("learner", 0)
        wait_until(lambda: epoch_of(learner.outcome().variables.version), what="a later life")
        wait_until(lambda: learner.status().done, what="the end of the second life")
        outcome = learner.outcome()
        stored = checkpoints.load(running._conductor.checkpoints, "learner", 1) if learners == 2 else None
        assert restarts_of(running) == {"learner": 1, "actors": 0}
    # The other rank is asked to end with the killed one, and stores its end if its grace is long enough for that. Then
    # all go on from there, and their epoch is later than that of its versions and than the one they began with.
    assert epoch_of(outcome.variables.version) == (1 if stored is None else 2)
    assert outcome.counters.steps >= experiment.steps


@dataclasses.dataclass(frozen=True)
class CopyingBehindAGate:
    """`Copying`, whose first step waits while a file is there."""

    gate: str

    def __call__(self, seed: int) -> Copying:
        env = copying(seed)
        step = env.step

        def gated(action: Any) -> Any:
            while os.path.exists(self.gate) and not rw.stopping():
                time.sleep(0.01)
            return step(action)

        env.step = gated  # type: ignore[method-assign]
        return env


def test_learners_go_on_alike_when_one_was_saved_before_its_first_update_and_another_one_never(tmp_path: Path) -> None:
    gate, folder = tmp_path / "gate", tmp_path / "run"
    gate.touch()
    behind = CopyingBehindAGate(str(gate))
    experiment = dataclasses.replace(EXPERIMENT, environment=behind, steps=3_000, checkpoint=folder)
    with experiment.program(2, learners=2).launch() as running:
        running.wait_ready()
        running.stop()
    gate.unlink()
    state = ExperimentCheckpoints(folder, 60.0, "", 1).load()
    assert state is not None and state["counters"]["updates"] == 0
    for file in folder.glob("experiment.0*"):
        file.unlink()
    assert ExperimentCheckpoints(folder, 60.0, "", 0).load() is None
    result = experiment.run(2, learners=2, log="silent")
    assert result.counters.steps >= experiment.steps


def test_learners_stop_after_the_same_update_and_go_on_from_it(tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, checkpoint=tmp_path / "run")
    with experiment.program(2, learners=2).launch() as running:
        learner = running.client("learner")[0]
        while learner.status().counters.updates < 10:
            threading.Event().wait(0.02)
        running.stop()
    states = [ExperimentCheckpoints(tmp_path / "run", 60.0, "", rank).load() for rank in range(2)]
    assert states[0] is not None and states[1] is not None
    assert states[0]["counters"] == states[1]["counters"] and states[0]["digests"] == states[1]["digests"]
    updates = states[0]["counters"]["updates"]
    assert updates >= 10

    with pytest.raises(rw.ProgramFailed) as raised:
        experiment.run(2, log="silent")
    assert "the checkpoint is of a run with learners=2" in str(raised.value.__cause__)
    assert len(raised.value.deaths) == 1, "a restart would fail in the same way"

    logger = MemoryLogger()
    result = experiment.run(2, learners=2, log=logger)
    assert result.counters.steps >= experiment.steps
    assert list(result.digests[: updates // 5]) == states[0]["digests"]
    assert logger.rows["end"][0]["updates"] == result.counters.updates > updates


@pytest.mark.parametrize("learners", [1, 2])
def test_learners_that_wait_for_batches_are_saved_when_the_program_is_stopped(
    learners: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_CHECKPOINT_S", 0.01)  # due before the first batch has come
    starved = rl.DQN(unroll=8, envs=2, learning_starts=90_000)
    experiment = dataclasses.replace(EXPERIMENT, agent=starved, steps=100_000, checkpoint=tmp_path / "run")
    with experiment.program(2, learners=learners).launch() as running:
        ranks = [running.client("learner")[rank] for rank in range(learners)]
        wait_until(
            lambda: all(rank in ranks[rank].status().actors for rank in range(learners)), what="blocks in all replays"
        )
        first, last = ranks[0], ranks[-1]
        error = NotFinite("the observation is nan", run_id=f"{learners - 1}#0")
        while last.refuse(error):
            pass
        wait_until(lambda: isinstance(first.status().failure, NotFinite), what="rank 0 knows what ends training")
        assert first.status().problems == ("the observation is nan",)
        assert not [event for event in running.status().events if "is not saved while" in event]
        running.stop()
    for rank in range(learners):
        state = ExperimentCheckpoints(tmp_path / "run", 60.0, "", rank).load()
        assert state is not None and state["counters"]["updates"] == 0
        assert state["arrived"]["steps"] > 0


@pytest.mark.parametrize(
    ("agent", "options", "complaint"),
    [
        (rl.IMPALA(), {"learners": 2}, "learners=2 and .* are processes of a program"),
        (rl.IMPALA(), {"actors": 2, "learners": 3}, "learners=3 and actors=2: there is at least one learner"),
        (rl.IMPALA(), {"actors": 2, "learners": 0}, "learners=0 and actors=2"),
        (rl.IMPALA(), {"actors": 2, "learners": 2, "mode": "lockstep"}, "learners=2: in lock-step one learner learns"),
        (rl.PPO(), {"actors": 2, "learners": 2}, "learners=2: in lock-step one learner learns"),
        (rl.IMPALA(normalise_observations=True), {"actors": 2, "learners": 2}, "normalises observations"),
    ],
)
def test_what_several_learners_cannot_do_is_said_before_anything_starts(
    agent: rl.Agent, options: dict[str, Any], complaint: str
) -> None:
    experiment = dataclasses.replace(EXPERIMENT, agent=agent, groups=4)
    with pytest.raises(ValueError, match=complaint):
        experiment.run(**options)


def test_a_run_with_several_learners_has_no_record(tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENT, record=tmp_path / "decisions.jsonl")
    with pytest.raises(ValueError, match="a run with learners=2 cannot be repeated"):
        experiment.run(2, learners=2)
    assert not list(tmp_path.iterdir())
