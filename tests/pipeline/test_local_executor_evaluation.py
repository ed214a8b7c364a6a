"""Evaluation by stages gives what the trained model gives in evaluation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.errors import StageFailed
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.stages.evaluation import StageEvaluation
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.models import MODELS
from tests.pipeline.played_plans import even_cut, plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3)
    )
    return trace(model, (torch.randn(4, 4),))


def batch(size: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 4), torch.randint(3, (size,))


def player_of(
    graph: ModelGraph, cut: Any = None, devices: Any = None, replicas: Any = 1, **options: Any
) -> LocalExecutor:
    cut = even_cut(graph, 2) if cut is None else cut
    plan = plan_of(graph, cut, micro_batches=4, devices=devices, replicas=replicas)
    return LocalExecutor(graph, functional.cross_entropy, sgd, plan, **options)


@pytest.mark.parametrize("name", ["transformer", "unet", "two_branches"])
def test_real_models_give_what_the_whole_model_gives(name: str) -> None:
    """Dropout off, running statistics, skips over several stages, two inputs; after a step, to the bit."""
    model, example, targets, loss = MODELS[name]()
    graph = trace(model, example)
    executor = LocalExecutor(graph, loss, sgd, plan_of(graph, even_cut(graph, 4), micro_batches=1))
    executor.step(example, targets)
    module = executor.to_module().eval()
    torch.backends.mha.set_fastpath_enabled(False)  # torch's own short cut rounds otherwise
    try:
        with torch.no_grad():
            expected = module(*example)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert torch.equal(executor.predict(example), expected)
    assert executor.evaluate([(example, targets)]) == float(loss(expected, targets))


@pytest.mark.parametrize(
    ("schedule", "devices", "replicas"),
    [("pipedream", [0, 1], (2, 1)), ("interleaved", [0, 1, 0, 1], 1), ("gpipe", [0, 1], (1, 3))],
)
def test_many_batches_of_all_sizes_count_by_their_samples(
    graph: ModelGraph, schedule: str, devices: list[int], replicas: Any
) -> None:
    executor = player_of(graph, even_cut(graph, len(devices)), devices, replicas, schedule=schedule)
    executor.step(*batch(12))
    batches = [batch(size) for size in (6, 1, 9, 4, 4, 2, 8, 3, 7, 5, 6, 2, 1)]
    module = executor.to_module().eval()
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert executor.evaluate(batches) == pytest.approx(functional.cross_entropy(module(x), y).item(), rel=1e-6)
    assert executor.evaluate(iter(batches[:1])) == functional.cross_entropy(module(batches[0][0]), batches[0][1]).item()


def test_training_goes_on_as_if_nothing_had_been_evaluated(graph: ModelGraph) -> None:
    given = [batch() for _ in range(3)]
    states: list[dict[str, Any]] = []
    for evaluates in (False, True):
        executor = player_of(graph, seed=5, options=TrainingOptions(accumulate=1))
        for x, y in given:
            executor.step(x, y)
            if evaluates:
                executor.evaluate([(x, y)] * 3)
                executor.predict(x)
        states.append(executor.state_dict())
    for kind in ("parameters", "buffers"):
        assert all(torch.equal(states[0][kind][name], states[1][kind][name]) for name in states[0][kind])


def test_a_stage_may_have_nothing_to_do_in_evaluation(graph: ModelGraph) -> None:
    ids = [one.id for one in graph.operators]
    dropout = ids.index("1:0")
    executor = player_of(graph, [ids[:dropout], ids[dropout : dropout + 1], ids[dropout + 1 :]])
    executor.step(*batch())
    x, _ = batch()
    with torch.no_grad():
        assert torch.equal(executor.predict(x), executor.to_module().eval()(x))


def test_outputs_may_be_any_tree_and_labels_anything() -> None:
    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, scale: Tensor) -> dict[str, Any]:
            hidden = torch.tanh(self.first(x))
            return {"hidden": hidden, "out": (self.second(hidden) * scale, scale)}

    def loss(outputs: dict[str, Any], labels: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(outputs["out"][0], labels["y"])

    model, (x, y), scale = Tree(), batch(6), torch.tensor(2.0)
    graph = trace(model, (x, scale))
    executor = LocalExecutor(graph, loss, sgd, plan_of(graph, even_cut(graph, 3), micro_batches=2))
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(x, scale)
    found = executor.predict((x, scale))
    assert torch.equal(found["hidden"], expected["hidden"]) and torch.equal(found["out"][0], expected["out"][0])
    assert not found["hidden"].requires_grad
    assert executor.evaluate([((x, scale), {"y": y % 2})]) == float(loss(expected, {"y": y % 2}))


def test_bfloat16_is_that_of_training(graph: ModelGraph) -> None:
    executor = player_of(graph, options=TrainingOptions(autocast=torch.bfloat16))
    x, _ = batch()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = executor.to_module().eval()(x)
    found = executor.predict(x)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)


def test_an_exception_says_where_and_leaves_the_training_whole(graph: ModelGraph) -> None:
    executor = player_of(graph)
    x, y = batch()
    executor.step(x, y)
    with pytest.raises(StageFailed, match=r"stage 1, replica 0, mini-batch 1 of an evaluation.*IndexError") as caught:
        executor.evaluate([(x, y), (x, y + 3)])
    assert caught.value.stage == 1 and isinstance(caught.value.__cause__, IndexError)
    assert executor.evaluate([(x, y)]) > 0
    executor.step(x, y)


def test_actions_run_each_stage_once_for_each_batch(graph: ModelGraph) -> None:
    plan = plan_of(graph, even_cut(graph, 4), devices=[0, 1, 0, 1], replicas=2)
    evaluation = StageEvaluation(graph, plan)
    lists = evaluation.actions(3, 5)
    ran = sorted(
        (action.stage, action.micro_batch or 0)
        for worker, actions in lists.items()
        for action in actions
        if action.kind is ActionKind.FORWARD and plan.worker_of(action.stage, action.micro_batch or 0) == worker
    )
    assert ran == [(stage, number) for stage in range(4) for number in range(3, 8)]
    assert evaluation.input_stages == {0} and evaluation.output_stage == 3
