"""A plan of one stage with replicas is data parallelism: it equals torch's DistributedDataParallel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

import ropewalk as rw
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training import stage_fleet
from ropewalk.training.trainer import Trainer
from ropewalk.training.trainer_options import ProcessOptions
from tests.pipeline.played_plans import plan_of
from tests.training.ddp_training import MICRO_BATCHES, SEED, STEPS, batches, network, sgd, trained
from tests.training.executed import executed_matches

pytestmark = pytest.mark.usefixtures("one_thread")


def trained_by(rank: int, store: Path, replicas: int) -> tuple[int, dict[str, Tensor]]:
    """What a rank of torch's own training comes to, and its pid."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=replicas)
    return os.getpid(), trained(rank, replicas)


@pytest.mark.parametrize("replicas", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_one_stage_with_replicas_equals_distributed_data_parallel(
    replicas: int, trainings: rw.Session, tmp_path: Path
) -> None:
    """With four replicas; `make soak` repeats it with two."""
    model = network()
    graph = trace(model, (torch.randn(4, 10),))
    stage = [one.id for one in graph.operators]
    with rw.Pool(replicas, session=trainings, preload=stage_fleet.PRELOADED) as pool:
        ranks = pool.starmap(trained_by, [(rank, tmp_path / "store", replicas) for rank in range(replicas)], 1)
    assert len({pid for pid, _ in ranks}) == replicas
    wanted = ranks[0][1]
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
