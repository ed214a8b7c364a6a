"""The digits network converges under every sort of schedule; of those that equal one process one is proof enough."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from ropewalk.pipeline.player import Player
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of
from tests.training.digits import MICRO_BATCHES, NUM_STEPS, SIZE, DigitsNet, OneCycle, accuracy, adam, batches, load

pytestmark = pytest.mark.usefixtures("one_thread")

#: With a flush, with a version for each micro-batch, with two versions.
DIFFERENT = ("one_f_one_b", "pipedream", "pipedream_2bw")


@pytest.mark.parametrize(
    "name", [name if name in DIFFERENT else pytest.param(name, marks=pytest.mark.soak) for name in SCHEDULES]
)
def test_the_digits_are_learnt(name: str) -> None:
    torch.manual_seed(0)
    digits, model, schedule = load(), DigitsNet(), make_schedule(name)
    graph = trace(model, (digits.train_x[: SIZE // MICRO_BATCHES],))
    groups = [schedule.group_of(stage, 2) for stage in range(2 * schedule.stages_per_worker)]
    plan = plan_of(graph, even_cut(graph, len(groups)), schedule=name, micro_batches=MICRO_BATCHES, devices=groups)
    num_updates = NUM_STEPS * (MICRO_BATCHES if name == "pipedream" else 1)
    player = Player(graph, functional.cross_entropy, adam, plan, lr_schedule=OneCycle(num_updates))
    for x, y in batches(digits):
        player.step(x, y)
    assert accuracy(player.to_module(), digits) >= 0.97
