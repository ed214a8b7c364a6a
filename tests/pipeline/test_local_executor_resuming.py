"""An executor that goes on from a saved state equals one that was never stopped."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    torch.manual_seed(0)
    return trace(model_of(6), (torch.randn(4, 4),))


def model_of(width: int) -> nn.Module:
    """Dropout, batch normalisation, and a bias that is not trained."""
    model = nn.Sequential(
        nn.Linear(4, width),
        nn.Dropout(0.3),
        nn.BatchNorm1d(width),
        nn.Linear(width, width),
        nn.Dropout(0.2),
        nn.Tanh(),
        nn.Linear(width, 3),
    )
    model[3].bias.requires_grad_(False)
    return model


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Two groups, of weights and of biases."""
    weights = [one for one in parameters if one.dim() > 1]
    others = [one for one in parameters if one.dim() == 1]
    return torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": others}], 1e-2, weight_decay=0)


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def player_of(graph: ModelGraph, schedule: str, num_stages: int = 3, **options: Any) -> LocalExecutor:
    replicas = options.pop("replicas", 1)
    plan = plan_of(graph, even_cut(graph, num_stages), micro_batches=3, replicas=replicas)
    optimizer = OptimizerMaker(options.pop("optimizer", adam), options.pop("lr_schedule", halving))
    chosen: dict[str, Any] = {"seed": 5, **options}
    return LocalExecutor(graph, functional.cross_entropy, optimizer, plan, schedule=schedule, **chosen)


def batches(num: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(11, 4), torch.randint(3, (11,))) for _ in range(num)]


def steps(executor: LocalExecutor, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    metrics = [executor.step(x, y) for x, y in batches]
    executor.drain()
    return [loss for one in metrics for loss in one.losses]


def written(state: dict[str, Any]) -> dict[str, Any]:
    """The state as it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def assert_same(found: Any, expected: Any, path: str = "") -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key in expected:
            assert_same(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, Tensor):
        assert torch.equal(found, expected), path
    else:
        assert found == expected, path


@pytest.mark.parametrize(
    ("schedule", "resumed"),
    [
        ("gpipe", "gpipe"),
        ("one_f_one_b", "one_f_one_b"),
        ("pipedream", "pipedream"),
        ("pipedream_2bw", "pipedream_2bw"),
        ("one_f_one_b", "another cut"),
    ],
)
def test_steps_after_a_resume_are_those_of_the_run_that_was_not_broken(
    graph: ModelGraph, schedule: str, resumed: str
) -> None:
    data = batches(6)
    unbroken = player_of(graph, schedule)
    steps(unbroken, data[:3])
    saved = written(unbroken.state_dict())
    expected = steps(unbroken, data[3:])

    again = player_of(graph, schedule, 2 if resumed == "another cut" else 3, seed=0)
    again.load_state_dict(saved)
    assert again.num_steps == 3
    assert all(map(torch.equal, steps(again, data[3:]), expected))
    assert_same(again.state_dict(), unbroken.state_dict())


def test_a_player_can_go_back_to_where_it_was(graph: ModelGraph) -> None:
    data = batches(4)
    for schedule in ("one_f_one_b", "pipedream"):
        executor = player_of(graph, schedule)
        steps(executor, data[:1])
        saved = executor.state_dict()
        first = steps(executor, data[1:])
        executor.load_state_dict(saved)
        assert all(map(torch.equal, steps(executor, data[1:]), first))


def test_all_replicas_get_the_state(graph: ModelGraph) -> None:
    data = batches(3)
    unbroken = player_of(graph, "one_f_one_b", replicas=[2, 1, 3])
    steps(unbroken, data[:2])
    saved = unbroken.state_dict()
    again = player_of(graph, "one_f_one_b", replicas=[2, 1, 3])
    again.load_state_dict(saved)
    expected = steps(unbroken, data[2:])
    assert all(map(torch.equal, steps(again, data[2:]), expected))


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(graph: ModelGraph) -> None:
    executor = player_of(graph, "gpipe")
    before = executor.state_dict()
    wider = player_of(trace(model_of(7), (torch.randn(4, 4),)), "gpipe").state_dict()
    fewer = {**before, "buffers": {}}
    frozen = {**before, "options": {}}
    lonely = {**before, "options": {**before["options"], "0.weight": {"lr": 7.0}}}
    for state, message in (
        (wider, r"parameter '6.weight' is torch.float32 of shape \(3, 7\) in the state, and .* \(3, 6\) in the model"),
        (fewer, "3 buffers do not fit: '2.num_batches_tracked' is in the model, but not in the state"),
        (frozen, r"parameter '.*' is trained here, and was not when the state was saved"),
        (graph.model.state_dict(), "the state has no 'parameters'; give what state_dict returned"),
        ({**before, "rates": {}}, "was saved without an lr_schedule, and this executor is with one"),
    ):
        with pytest.raises(ValueError, match=message):
            executor.load_state_dict(state)
    assert_same(executor.state_dict(), before)
    one_stage = player_of(graph, "gpipe", 1)
    with pytest.raises(ValueError, match=r"'0.weight' and '3.weight' in one group here, but .* different options"):
        one_stage.load_state_dict(lonely)
