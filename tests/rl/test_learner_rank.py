"""Several learners as processes: they learn, die, stop and go on together."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import ropewalk as rw
from ropewalk import rl
from ropewalk.errors import NotFinite
from ropewalk.rl import distributed
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.checkpoints import ExperimentCheckpoints
from ropewalk.rl.distributed import ProcessCounts, build_program
from ropewalk.rl.learner_node import LearnerStatus
from ropewalk.rl.logs.memory import MemoryLogger
from ropewalk.rl.result import TrainingOutcome
from ropewalk.rl.variables import epoch_of
from tests.scenarios.tasks import wait_until

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


def run_ranks(
    experiment: rl.Experiment, actors: int, watch: Callable[[Any, LearnerStatus], None] | None = None
) -> tuple[list[TrainingOutcome], dict[str, int]]:
    """Run with two learners; returns the outcomes of both, and the restarts of each node."""
    program = build_program(Assembly(experiment, actors), ProcessCounts(actors, "async", learners=2), hold=True)
    with program.launch() as running:
        learners = running.client("learner", on_lost="retry")
        while not (status := learners[0].status()).done:
            if watch is not None:
                watch(running, status)
            threading.Event().wait(0.02)
        restarts: dict[str, int] = {}
        for node in running.status().nodes:
            restarts[node.name] = restarts.get(node.name, 0) + node.restarts
        assert set(status.actors) == set(range(actors)), "rank 0 knows all"
        return [learners[rank].outcome() for rank in range(2)], restarts


def test_two_learners_learn_and_have_equal_weights() -> None:
    (first, second), restarts = run_ranks(EXPERIMENT, 3)
    assert len(first.digests) > 5 and first.digests == second.digests
    assert first.counters == second.counters
    assert first.counters.steps >= EXPERIMENT.steps
    assert first.counters.episodes > 0.7 * EXPERIMENT.steps / 11
    assert first.counters.score is not None and first.counters.score > 8, "chance gives 5"
    assert set(restarts.values()) == {0}


def test_all_learners_go_on_together_when_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_CHECKPOINT_S", 0.05)
    experiment = dataclasses.replace(EXPERIMENT, steps=10_000)
    kills: list[int] = []
    least: list[int] = []
    """Updates of the lives after the kills."""

    def kill(running: Any, status: LearnerStatus) -> None:
        if kills and status.counters.updates != kills[-1]:
            least[-1] = min(least[-1], status.counters.updates)
        if len(kills) < 2 and status.counters.updates >= 25 * (len(kills) + 1):
            kills.append(status.counters.updates)
            least.append(status.counters.updates)
            running.kill("learner", len(kills) % 2)

    (first, second), restarts = run_ranks(experiment, 2, kill)
    assert len(kills) == 2 and min(least) > 5, "they went on from a checkpoint"
    assert restarts["learner"] >= 2 and restarts["actors"] == 0, "actors carry on"
    assert first.digests == second.digests
    assert len(first.digests) == first.counters.updates // 5, "updates were taken over, and not done again"
    assert first.counters == second.counters and first.counters.steps >= experiment.steps


@pytest.mark.parametrize("learners", [1, 2])
def test_actors_collect_again_for_a_learner_that_dies_after_its_end(
    learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_CHECKPOINT_S", 1e6)  # it goes on from its beginning
    experiment = dataclasses.replace(EXPERIMENT, steps=1_500)
    program = build_program(Assembly(experiment, 2), ProcessCounts(2, "async", learners=learners), hold=True)
    with program.launch() as running:
        learner = running.client("learner", on_lost="retry")[0]
        wait_until(lambda: learner.status().done, what="the end")
        running.kill("learner", 0)
        wait_until(lambda: epoch_of(learner.outcome().variables.version) == 1, what="the second life")
        wait_until(lambda: learner.status().done, what="the end of the second life")
        assert learner.outcome().counters.steps >= experiment.steps


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
