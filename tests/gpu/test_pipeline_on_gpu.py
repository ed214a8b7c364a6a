"""Profiles, topologies and the local executor on a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.planning import plan as make_plan
from ropewalk.pipeline.probing import probe
from ropewalk.pipeline.profiler import profile
from ropewalk.pipeline.stages.randomness import micro_batch_seed
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.reference_process import MicroBatched
from tests.pipeline.test_local_executor_parity import SEED, hard_model, sgd


def test_a_profile_is_measured_on_the_gpu_and_planned() -> None:
    model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(1024, 1024), nn.ReLU())])
    found = profile(model, torch.randn(256, 1024), device="cuda")
    assert found.device.startswith("cuda:0")
    assert not next(model.parameters()).is_cuda, "the model stays where it was"
    layers = [one for one in found.operators if one.parameter_bytes]
    assert len(layers) == 4 and all(one.forward_s > 0 and one.backward_s > 0 for one in layers)
    assert len(make_plan(found, devices=2, num_stages=2).stages) == 2


def test_the_gpus_of_this_machine_are_a_topology() -> None:
    said: list[str] = []
    topology = probe(device="cuda", report=said.append)
    assert topology.num_devices == torch.cuda.device_count()
    memory = topology.kind(0).memory_bytes
    assert memory is not None and memory <= torch.cuda.get_device_properties(0).total_memory


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b"])
def test_the_player_computes_on_the_gpu_what_one_process_does(schedule: str, recompute: bool) -> None:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1)).cuda()
    y = torch.randint(3, (16,), generator=torch.Generator().manual_seed(2)).cuda()
    model = hard_model().cuda()
    graph = trace(copy.deepcopy(model), x[:4])
    plan = plan_of(graph, even_cut(graph, 3), schedule=schedule, micro_batches=4, recompute=recompute)
    player = LocalExecutor(graph, functional.cross_entropy, sgd, plan, seed=SEED)
    reference = MicroBatched(
        model,
        functional.cross_entropy,
        sgd,
        4,
        seed_of=lambda step, index: micro_batch_seed(SEED, step, index),
        backwards=schedule == "gpipe",
    )
    for _ in range(4):
        player.step(x, y)
        reference.step(x, y)
    found = player.state_dict()["parameters"]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name].cpu(), parameter.detach().cpu(), rtol=1e-5, atol=1e-6)
