"""Stages compute in bfloat16 where `torch.autocast` would in one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.stages.randomness import micro_batch_seed
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.models import MODELS
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.reference_process import MicroBatched, trained_state

pytestmark = pytest.mark.usefixtures("one_thread")


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


class Autocast(nn.Module):
    """A model under autocast, with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(*inputs)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("transformer", "one_f_one_b"), ("resnet", "one_f_one_b"), ("unet", "one_f_one_b"), ("mlp", "zb_h1")],
)
def test_real_models_in_bfloat16_equal_one_process(name: str, schedule: str) -> None:
    model, example, targets, loss = MODELS[name]()

    def with_autocast(outputs: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(outputs, labels)

    graph = trace(model, example)
    plan = plan_of(graph, even_cut(graph, 3), schedule=schedule, micro_batches=2, recompute=[True, False, True])
    executor = LocalExecutor(graph, loss, sgd, plan, seed=3, slots=1, options=TrainingOptions(autocast=torch.bfloat16))
    reference = MicroBatched(
        Autocast(copy.deepcopy(model)), with_autocast, sgd, 2, seed_of=lambda s, index: micro_batch_seed(3, s, index)
    )
    x = tuple(torch.cat([one, one.flip(0)]) for one in example)
    y = torch.cat([targets, targets.flip(0)])
    for _ in range(2):
        for mine, theirs in zip(executor.step(x, y).losses, reference.step(x, y), strict=True):
            assert torch.equal(mine, theirs)
    parameters = executor.state_dict()["parameters"]
    for key, tensor in trained_state(reference)["parameters"].items():
        mine = parameters[key.removeprefix("model.")]
        assert mine.dtype == torch.float32
        assert torch.equal(mine, tensor), key


def test_what_passes_between_stages_is_half_as_large() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    graph = trace(model, (torch.randn(4, 4),))
    plan = plan_of(graph, even_cut(graph, 2), micro_batches=1)
    executor = LocalExecutor(
        graph, functional.cross_entropy, sgd, plan, options=TrainingOptions(autocast=torch.bfloat16)
    )
    seen: set[torch.dtype] = set()
    send = executor.links.send

    def noted(tag: Any, parcel: Any) -> None:
        values = parcel.tree if isinstance(parcel.tree, tuple) else [parcel.tree]
        seen.update(value.dtype for value in values)
        send(tag, parcel)

    executor.workers[plan.workers[0]]._links = Noted(executor.links, noted)  # pyright: ignore
    executor.step(torch.randn(4, 4), torch.randint(3, (4,)))
    assert seen == {torch.bfloat16}


class Noted:
    """Links that tell what is sent."""

    def __init__(self, links: Any, send: Any) -> None:
        self.has_room, self.has, self.receive, self.send = links.has_room, links.has, links.receive, send
