"""Three and more replicas sum their gradients in slices: on real processes, to the bit, with as few bytes as a ring.

Replicas are killed at any message of a sum. Where a schedule cannot do with fewer replicas, a new process takes the
place of each; else the others go on without it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import nn

import ropewalk as rw
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.testing import faults
from ropewalk.training.sliced_sum import LEAST_BYTES
from ropewalk.training.trainer import Trainer
from tests.training.faulty_training import (
    SEED,
    WIDTH,
    Job,
    Learnt,
    assert_same,
    batch,
    differences,
    go_through,
    nothing_left,
    undisturbed,
)

pytestmark = pytest.mark.usefixtures("one_thread")

#: No multiple of 2, 3 or 4, so that slices are of unequal sizes.
INNER, LAST = 1103, 23


def wide_layers() -> nn.Sequential:
    """Two weights that are sliced, one for each of two stages, and a batch normalisation, whose moments are not."""
    return nn.Sequential(nn.Linear(WIDTH, INNER), nn.Tanh(), nn.Linear(INNER, LAST), nn.BatchNorm1d(LAST))


@dataclass(frozen=True)
class ReplicaJob(Job):
    """One process for each replica of all stages, and one micro-batch for each."""

    num_groups: int = 1
    replicas: int = 3
    model: Any = wide_layers

    @property
    def micro_batches(self) -> int:
        return self.replicas


@pytest.fixture
def session(trainings: rw.Session) -> Iterator[rw.Session]:
    with nothing_left(trainings):
        yield trainings
        # Weights of this size travel in memory files, and errors of lost calls, which hold their messages, in cycles.
        gc.collect()


def sent_bytes(trainer: Trainer) -> list[int]:
    """By each worker, to all others; drains first."""
    assert trainer._run is not None
    return [sum(one.sent_bytes.values()) for one in trainer._run.counters().values()]


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_sums_of_replicas_are_those_of_one_process_and_cost_as_few_bytes_as_a_ring(
    session: rw.Session, replicas: int
) -> None:
    job = ReplicaJob("interleaved", replicas=replicas, num_steps=4)
    with job.trainer(session, snapshots=None) as trainer:
        found = go_through(trainer, job)
        sent = sent_bytes(trainer)
    assert_same(found, undisturbed(job))
    parameters = undisturbed(job).state["parameters"].values()
    assert sum(one.nbytes >= LEAST_BYTES for one in parameters) == 2
    total = job.num_steps * sum(one.nbytes for one in parameters)
    for num in sent:
        assert 2 * (replicas - 1) / replicas <= num / total < 2 * (replicas - 1) / replicas * 1.25


#: Which message of a sum each killed process does not come to send: the sum, and how many it has sent before.
KILLED_BEFORE = {
    3: [("stage 0 v2 part", 0), ("stage 1 v3 part", 1), ("stage 1 v4 total", 0), ("stage 0 v6 total", 1)],
    4: [("stage 1 v2 part", 1), ("stage 0 v3 part", 2), ("stage 0 v5 total", 1), ("stage 1 v6 total", 2)],
}


@pytest.mark.parametrize("replicas", KILLED_BEFORE)
def test_replicas_that_are_killed_at_any_message_of_a_sum_change_nothing(session: rw.Session, replicas: int) -> None:
    job = ReplicaJob("interleaved", replicas=replicas, num_steps=7)
    with ExitStack() as stack:
        injected = [
            stack.enter_context(
                faults.at("stage.before_part", faults.kill(), detail=f"replicas of {message}", after=after)
            )
            for message, after in KILLED_BEFORE[replicas]
        ]
        with job.trainer(session) as trainer:
            found = go_through(trainer, job)
            assert len(trainer.plan.workers) == replicas
            assert ["was lost" in event for event in trainer.events] == [True] * len(injected)
    assert [one.num_fired for one in injected] == [1] * len(injected)
    assert_same(found, undisturbed(job))


@pytest.mark.parametrize(("replicas", "message", "after"), [(3, "total", 1), (4, "part", 2)])
def test_the_others_go_on_without_a_replica_that_is_killed_in_a_sum(
    session: rw.Session, replicas: int, message: str, after: int
) -> None:
    job = ReplicaJob("gpipe", replicas=replicas, num_steps=7)
    detail = f"replicas of stage 0 v4 {message}"
    with (
        faults.at("stage.before_part", faults.kill(), detail=detail, after=after) as fault,
        job.trainer(session) as trainer,
    ):
        found = go_through(trainer, job)
        assert [stage.replicas for stage in trainer.plan.stages] == [replicas - 1]
    assert fault.num_fired == 1
    # They go on from a snapshot, or from the beginning if none was kept yet.
    expected = [narrowed(job, num_before) for num_before in (0, 2)]
    assert any(not list(differences(found.state, one.state)) and found.losses == one.losses for one in expected)


def narrowed(job: ReplicaJob, num_before: int) -> Learnt:
    """A training in one thread that has one replica less after some steps."""
    graph = job.graph
    plan = job.plan_of(graph)
    (stage,) = plan.stages
    fewer = replace(plan, stages=(replace(stage, devices=stage.devices[:-1]),))
    losses: list[list[float]] = []
    state: dict[str, Any] | None = None
    for one, steps in ((plan, range(num_before)), (fewer, range(num_before, job.num_steps))):
        player = LocalExecutor(graph, job.loss_fn, job.optimizer, one, seed=SEED)
        if state is not None:
            player.load_state_dict(state)
        losses += [[float(loss) for loss in player.step(*batch(step)).losses] for step in steps]
        state = player.state_dict()
    assert state is not None
    return Learnt(losses, state)
