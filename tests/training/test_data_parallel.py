"""A plan of one stage with replicas is data parallelism: it equals torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import ropewalk as rw
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.trainer import Trainer
from ropewalk.training.trainer_options import ProcessOptions
from tests.exchange.torch_members import TorchMembers
from tests.pipeline.played_plans import plan_of
from tests.training.ddp_training import MICRO_BATCHES, SEED, STEPS, batches, network, sgd, trained
from tests.training.executed import executed_matches

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchMembers]:
    with TorchMembers(4, tmp_path_factory.mktemp("members")) as members:
        yield members


@pytest.mark.parametrize("replicas", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_one_stage_with_replicas_equals_distributed_data_parallel(
    replicas: int, members: TorchMembers, trainings: rw.Session
) -> None:
    """With four replicas; `make soak` repeats it with two."""
    model = network()
    graph = trace(model, (torch.randn(4, 10),))
    stage = [one.id for one in graph.operators]
    wanted = members.run(trained, replicas)[0]
    plan = plan_of(graph, [stage], schedule="one_f_one_b", micro_batches=MICRO_BATCHES, replicas=replicas)
    with Trainer(
        graph,
        functional.cross_entropy,
        sgd,
        plan,
        seed=SEED,
        processes=ProcessOptions(session=trainings, snapshots=None),
    ) as trainer:
        for x, y in batches():
            trainer.step(x, y)
        found = trainer.state_dict()["parameters"]
        records = trainer.records()
        run: Any = trainer._run
        pids = {one.pid for one in run.counters().values()}
    largest = max(float(one.abs().max()) for one in wanted.values())
    errors = {name: float((found[name] - one).abs().max()) / largest for name, one in wanted.items()}
    assert {name: error for name, error in errors.items() if error > 1e-6} == {}
    start = dict(model.named_parameters())
    assert all(not torch.allclose(found[name], start[name], atol=1e-2) for name in wanted), "it has learnt"
    executed_matches(plan, "one_f_one_b", records, admitted=[MICRO_BATCHES] * STEPS)
    assert len(pids) == replicas, "each replica is a process of its own"
