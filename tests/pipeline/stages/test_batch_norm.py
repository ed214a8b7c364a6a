"""Running statistics see a mini-batch as one (docs/theory.md, "Batch normalisation")."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.errors import StageFailed
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.stages.batch_norm import Moments
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of


def moments(values: Tensor) -> Moments:
    mean = values.mean(0)
    return Moments(len(values), mean, ((values - mean) ** 2).sum(0))


def test_pooled_moments_are_those_of_all_values() -> None:
    values = torch.randn(17, 3, dtype=torch.float64) + 1000
    first, second, third = (moments(part) for part in values.split([2, 9, 6]))
    for pooled in (first + second + third, third + (first + second)):
        assert pooled.count == 17
        assert torch.allclose(pooled.mean, values.mean(0), rtol=1e-14)
        assert torch.allclose(pooled.variance, values.var(0), rtol=1e-10)


@pytest.mark.parametrize("tracks", [True, False])
def test_a_micro_batch_of_one_sample_is_told_with_what_to_do(tracks: bool) -> None:
    # It was torch's "Expected more than 1 value per channel when training", for a mini-batch of three samples.
    norm = nn.BatchNorm1d(3, track_running_stats=tracks)
    graph = trace(nn.Sequential(norm, nn.Linear(3, 2)), torch.randn(4, 3))
    plan = plan_of(graph, even_cut(graph, 1), micro_batches=2)
    executor = LocalExecutor(graph, functional.mse_loss, lambda p: torch.optim.SGD(p, 0.1), plan)
    executor.step(torch.randn(4, 3), torch.randn(4, 2))
    with pytest.raises(StageFailed, match=r"'0' gets one value of each channel.*\(1, 3\).*drop_last=True"):
        executor.step(torch.randn(3, 3), torch.randn(3, 2))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "zb_h1"])
def test_a_batch_norm_at_the_input_has_the_statistics_of_the_full_batch(
    schedule: str, replicas: int, momentum: float | None
) -> None:
    norm = nn.BatchNorm2d(3, momentum=momentum)
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(48, 2))
    graph = trace(model, (torch.randn(4, 3, 4, 4),))
    plan = plan_of(
        graph, even_cut(graph, 2), schedule=schedule, micro_batches=4, replicas=replicas, recompute=[True, False]
    )
    plain = copy.deepcopy(norm).train()
    player = LocalExecutor(graph, functional.cross_entropy, lambda ps: torch.optim.SGD(ps, 0.1), plan)
    for _ in range(3):
        x = torch.randn(14, 3, 4, 4) * 3 + 5
        player.step(x, torch.zeros(14, dtype=torch.long))
        plain(x)
    buffers = player.state_dict()["buffers"]
    assert int(buffers["0.num_batches_tracked"]) == 3, "one a step, and none for running forward again"
    assert plain.running_mean is not None and plain.running_var is not None
    assert torch.allclose(buffers["0.running_mean"], plain.running_mean, rtol=1e-6)
    assert torch.allclose(buffers["0.running_var"], plain.running_var, rtol=1e-6)
    for stage in player.stages():
        if stage.setup.id == 0:
            assert all(torch.equal(stage.buffers[name], buffer) for name, buffer in buffers.items()), "replicas agree"


def test_a_frozen_batch_norm_keeps_its_statistics_and_normalises_by_them() -> None:
    norm = nn.BatchNorm1d(3).eval()
    assert norm.running_mean is not None
    norm.running_mean += 1
    model = nn.Sequential(norm, nn.Linear(3, 2))
    graph = trace(model, (torch.randn(4, 3),))
    plan = plan_of(graph, even_cut(graph, 2), micro_batches=2)
    player = LocalExecutor(graph, functional.mse_loss, lambda ps: torch.optim.SGD(ps, 0.1), plan)
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    assert torch.allclose(player.step(x, y).loss, functional.mse_loss(model(x), y))
    assert torch.equal(player.state_dict()["buffers"]["0.running_mean"], torch.ones(3))


class Counting(nn.Module):
    """Scales by a number that it keeps, and that each forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.ones(()))
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight * self.seen.clone()
        self.seen.add_(1)
        return y


def test_other_buffers_change_once_a_micro_batch_even_if_forwards_run_again() -> None:
    graph = trace(nn.Sequential(nn.Linear(2, 2), Counting()), (torch.randn(4, 2),))
    found: list[dict[str, Tensor]] = []
    for recompute in (False, True):
        plan = plan_of(graph, [["input.input", "0:0", "1:0"]], schedule="gpipe", micro_batches=3, recompute=recompute)
        player = LocalExecutor(graph, functional.mse_loss, lambda ps: torch.optim.SGD(ps, 0.1), plan)
        torch.manual_seed(0)
        player.step(torch.randn(6, 2), torch.randn(6, 2))
        state = player.state_dict()
        found.append(state["parameters"] | state["buffers"])
    assert float(found[0]["1.seen"]) == 4
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
