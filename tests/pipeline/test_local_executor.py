"""What an executor does beside training right: real models, metrics, evaluation, errors."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.errors import LocalExecutorFailed, NotTraceable, PlanInvalid, ScheduleInvalid, StageFailed
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import SCHEDULES, ActionStream, make_schedule
from ropewalk.pipeline.schedules.one_f_one_b import OneFOneB
from ropewalk.pipeline.stages.in_memory_links import LinkMessage, Tag
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.stages.randomness import micro_batch_seed
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.models import MODELS
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.reference_process import MicroBatched, trained_state

pytestmark = pytest.mark.usefixtures("one_thread")


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 1e-2)


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    return trace(model, (torch.randn(4, 4),))


def batch(size: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 4), torch.randint(3, (size,))


def player_of(graph: ModelGraph, num_stages: int = 2, **options: Any) -> LocalExecutor:
    schedule = options.pop("schedule", "one_f_one_b")
    plan = plan_of(graph, even_cut(graph, num_stages), micro_batches=options.pop("micro_batches", 3))
    loss = options.pop("loss_fn", functional.cross_entropy)
    return LocalExecutor(graph, loss, options.pop("optimizer", sgd), plan, schedule=schedule, **options)


# --- real models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_real_models_in_three_stages_equal_one_process_to_the_bit(name: str) -> None:
    """Long skips, branches, dropout, batch statistics, attention; gradients with strides of all kinds."""
    model, example, targets, loss = MODELS[name]()
    graph = trace(model, example)
    plan = plan_of(graph, even_cut(graph, 3), micro_batches=2, recompute=[True, False, True])
    executor = LocalExecutor(graph, loss, adam, plan, seed=3, slots=1)
    reference = MicroBatched(
        copy.deepcopy(model), loss, adam, 2, seed_of=lambda step, index: micro_batch_seed(3, step, index)
    )
    x = tuple(torch.cat([one, one.flip(0)]) for one in example)
    y = torch.cat([targets, targets.flip(0)])
    for _ in range(2):
        expected = reference.step(x, y)
        assert all(map(torch.equal, executor.step(x, y).losses, expected))
    found, wanted = executor.state_dict(), trained_state(reference)
    for kind in ("parameters", "buffers"):
        assert [key for key in wanted[kind] if not torch.equal(found[kind][key], wanted[kind][key])] == []
    for key, state in wanted["optimizer"].items():
        assert all(torch.equal(found["optimizer"][key][name], state[name]) for name in state), key


class ManyReaders(nn.Module):
    """One value that four layers read, each in another stage, so that the order of adding its gradients shows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        z: Any = 1.0
        for layer in self.layers:
            z = torch.tanh(layer(z * y))
        return z


def test_gradients_of_a_value_with_many_readers_are_added_in_the_order_of_one_process() -> None:
    model, x, y = ManyReaders(), torch.randn(32, 4), torch.randn(32, 16)
    graph = trace(model, (x,))
    ids = [one.id for one in graph.operators]
    ends = [0, *(ids.index(f"layers.{number}:0") + 1 for number in range(3)), len(ids)]
    plan = plan_of(graph, [ids[start:end] for start, end in pairwise(ends)], micro_batches=1)
    assert max(len(edge.targets) for edge in plan.edges) == 3
    executor = LocalExecutor(graph, functional.mse_loss, sgd, plan)
    reference = MicroBatched(copy.deepcopy(model), functional.mse_loss, sgd, 1)
    for _ in range(3):
        executor.step(x, y)
        reference.step(x, y)
    found, wanted = executor.state_dict()["optimizer"], trained_state(reference)["optimizer"]
    assert [n for n in wanted if not torch.equal(found[n]["momentum_buffer"], wanted[n]["momentum_buffer"])] == []


def test_sending_waits_for_room_on_the_link(graph: ModelGraph) -> None:
    executor = player_of(graph, slots=1)
    (edge,) = executor.plan.edges
    worker = executor.workers[PlanWorker(0, 0)]
    send = Action(ActionKind.SEND, 0, 0, 0, edge=edge.tensor, peer=1)
    assert worker.can_perform(send)
    executor.links.send(Tag(edge.tensor, 0, 1, 4), LinkMessage(None))
    assert not worker.can_perform(send)
    assert "room on the link for 2:0 of micro-batch 0 from stage 0 to stage 1" in str(worker.waits_for(send))


def test_a_transformer_with_tied_embeddings_keeps_its_copies_equal() -> None:
    model, example, targets, loss = MODELS["transformer"](tied=True)
    graph = trace(model, example)
    plan = plan_of(graph, even_cut(graph, 3), schedule="zb_h1", micro_batches=2)
    assert [tie.stages for tie in plan.tied] == [(0, 2)]
    executor = LocalExecutor(graph, loss, sgd, plan)
    reference = MicroBatched(
        copy.deepcopy(model), loss, sgd, 2, seed_of=lambda step, index: micro_batch_seed(0, step, index)
    )
    for _ in range(2):
        executor.step(example, targets)
        reference.step(example, targets)
    first, _, last = executor.stages()
    (tie,) = plan.tied
    assert torch.equal(first.versions.parameters[tie.parameter], last.versions.parameters[tie.parameter])
    for name, parameter in reference.model.named_parameters():
        assert torch.allclose(executor.state_dict()["parameters"][name], parameter, rtol=1e-5, atol=1e-6), name
    module = executor.to_module()
    assert module.get_parameter("head.weight") is module.get_parameter("embedding.weight")


def test_results_do_not_depend_on_the_cut_or_the_schedule(graph: ModelGraph) -> None:
    x, y = batch()
    losses: set[float] = set()
    for num_stages in (1, 2, 4):
        for schedule in ("one_f_one_b", "zb_h1"):
            executor = player_of(graph, num_stages, schedule=schedule, seed=11)
            executor.step(x, y)
            losses.add(float(executor.step(x, y).loss))
    assert len(losses) == 1
    other = player_of(graph, seed=12)
    other.step(x, y)
    assert float(other.step(x, y).loss) not in losses


def test_a_loss_that_draws_random_numbers_draws_the_same_for_every_cut_and_when_it_is_computed_again(
    graph: ModelGraph,
) -> None:
    # It drew from the generator of its process: each run was another, and a step that is repeated after a death too.
    def masked(outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs + torch.randn_like(outputs), labels)

    x, y = batch()
    state = torch.get_rng_state()
    weights: list[Tensor] = []
    for num_stages, recompute in ((1, False), (2, False), (4, False), (4, True)):  # the last stages draw nothing
        plan = plan_of(graph, even_cut(graph, num_stages), recompute=recompute)
        executor = LocalExecutor(graph, masked, sgd, plan, seed=11)
        executor.step(x, y)
        executor.step(x, y)
        weights.append(executor.to_module().state_dict()["0.weight"])
    assert all(torch.equal(one, weights[0]) for one in weights)
    assert torch.equal(torch.get_rng_state(), state)
    other = player_of(graph, loss_fn=masked, seed=12, micro_batches=4)
    assert len({float(loss) for _ in range(2) for loss in other.step(x[:1].expand(8, -1), y[:1].expand(8)).losses}) == 8


# --- using it ---------------------------------------------------------------------------------------------------------


def test_the_users_model_and_random_numbers_are_left_alone(graph: ModelGraph) -> None:
    before = {name: tensor.clone() for name, tensor in graph.model.state_dict().items()}
    x, y = batch()
    state = torch.get_rng_state()
    executor = player_of(graph)
    executor.step(x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in graph.model.state_dict().items())
    assert not torch.equal(executor.to_module().state_dict()["0.weight"], before["0.weight"])


def test_a_compiled_child_of_a_sequential_is_trained() -> None:
    # The copy of the child that a stage runs called the module that was copied, whose weights stay as they were.
    x, y = batch(6)
    losses: list[list[Tensor]] = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        child = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        compiled: Any = torch.compile(child, backend="eager") if is_compiled else child
        model = nn.Sequential(compiled, nn.Linear(6, 3))
        executor = player_of(trace(model, x))
        losses.append([executor.step(x, y).loss for _ in range(3)])
    assert losses[0] == losses[1]


def test_evaluation_is_the_loss_of_the_trained_model_in_eval_mode(graph: ModelGraph) -> None:
    executor = player_of(graph, schedule="pipedream")
    executor.step(*batch())
    batches = [batch(6), batch(3)]
    found = executor.evaluate(batches)
    module = executor.to_module().eval()
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert found == pytest.approx(functional.cross_entropy(module(x), y).item(), rel=1e-6)
    with pytest.raises(ValueError, match="no batches"):
        executor.evaluate([])


def test_evaluation_says_what_it_wants_in_place_of_one_pair(graph: ModelGraph) -> None:
    executor = player_of(graph)
    x, y = batch(2)
    one_pair: Any = (x, y)
    with pytest.raises(
        TypeError, match=r"one of them is a tensor of shape \(2, 4\); for one mini-batch give \[\(x, y\)\]"
    ):
        executor.evaluate(one_pair)
    inputs_alone: Any = [x]
    with pytest.raises(TypeError, match=r"mini-batches that are pairs \(x, y\)"):
        executor.evaluate(inputs_alone)
    in_lists: Any = [[x, y]]
    assert executor.evaluate(in_lists) == executor.evaluate([one_pair])


def test_metrics_print_their_loss_or_what_is_still_under_way(graph: ModelGraph) -> None:
    x, y = batch()
    metrics = player_of(graph).step(x, y)
    assert str(metrics) == f"loss {float(metrics.loss):.6g} over 3 micro-batches"
    assert repr(metrics) == f"<StepMetrics: {metrics}>"
    x[0] = torch.nan
    assert str(player_of(graph).step(x, y)) == "loss nan over 3 micro-batches (1 of them not finite)"
    under_way = StepMetrics(3, Loss(functional.cross_entropy))
    under_way.put(1, torch.tensor(2.0), 4.0)
    assert (
        str(under_way)
        == "1 of 3 micro-batches have their loss; the others come while the step goes on, or with a drain"
    )
    with pytest.raises(RuntimeError, match="2 of 3 micro-batches have no loss yet"):
        under_way.loss  # noqa: B018


def test_a_mini_batch_with_fewer_samples_than_micro_batches_has_fewer_pieces(graph: ModelGraph) -> None:
    for schedule in ("one_f_one_b", "pipedream", "pipedream_2bw"):
        executor = player_of(graph, schedule=schedule, micro_batches=4)
        assert len(executor.step(*batch(9)).losses) == 4
        assert len(executor.step(*batch(2)).losses) == 2
        assert len(executor.step(*batch(9)).losses) == 4
        executor.drain()
        assert not executor.links.waiting


@pytest.mark.parametrize("schedule", ["one_f_one_b", "pipedream"])
def test_an_update_for_which_no_label_counts_changes_no_weight(graph: ModelGraph, schedule: str) -> None:
    # 0 divided by the 0 labels that counted: all weights were NaN. Without a flush one such micro-batch was enough.
    def masked(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        counts = (labels >= 0).double()
        losses = functional.cross_entropy(outputs, labels, ignore_index=-1, reduction="none")
        return (losses * counts).sum(), counts.sum()

    for loss in (nn.CrossEntropyLoss(ignore_index=-1), Loss(masked, "weighted")):
        executor = player_of(graph, loss_fn=loss, schedule=schedule, micro_batches=2)
        before = executor.state_dict()["parameters"]
        x, y = batch(4)
        executor.step(x, torch.full_like(y, -1))
        after = executor.state_dict()["parameters"]
        assert all(torch.equal(before[name], after[name]) for name in before)
        executor.step(x, torch.where(torch.arange(4) < 2, -1, y))  # nothing counts in the first micro-batch alone
        trained = executor.state_dict()["parameters"]
        assert all(bool(one.isfinite().all()) for one in trained.values())
        assert any(not torch.equal(before[name], trained[name]) for name in before)


def test_weighted_losses_give_the_gradient_of_the_whole_batch(graph: ModelGraph) -> None:
    """A masked mean: pieces count by what the mask leaves of them, and one by nothing."""

    def masked(outputs: Tensor, labels: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        target, mask = labels
        return (functional.cross_entropy(outputs, target, reduction="none") * mask).sum(), mask.sum()

    model = nn.Sequential(*[layer for layer in graph.model.children() if not isinstance(layer, nn.Dropout)])
    x, y = batch(9)
    mask = torch.tensor([1.0, 0, 1, 0, 0, 0, 1, 1, 1])
    plan = plan_of(plain := trace(model, (x,)), even_cut(plain, 3), micro_batches=3)
    executor = LocalExecutor(plain, Loss(masked, "weighted"), sgd, plan)
    metrics = executor.step(x, (y, mask))
    expected = copy.deepcopy(model)
    loss = functional.cross_entropy(expected(x)[mask > 0], y[mask > 0])
    optimizer = sgd(list(expected.parameters()))
    loss.backward()
    optimizer.step()
    assert torch.allclose(metrics.loss, loss)
    found = executor.to_module().state_dict()
    assert all(torch.allclose(found[name], tensor, atol=1e-7) for name, tensor in expected.state_dict().items())


def test_learning_rate_schedules_count_the_updates_of_their_stage(graph: ModelGraph) -> None:
    rates: dict[str, list[float]] = {}
    for schedule, num_updates in (("one_f_one_b", 2), ("pipedream", 6)):
        falling = OptimizerMaker(sgd, lambda opt: torch.optim.lr_scheduler.ExponentialLR(opt, 0.5))
        executor = player_of(graph, schedule=schedule, optimizer=falling)
        for _ in range(2):
            executor.step(*batch())
        executor.drain()
        rates[schedule] = [stage.versions.optimizer.param_groups[0]["lr"] for stage in executor.stages()]  # pyright: ignore[reportOptionalMemberAccess]
        assert rates[schedule] == [0.1 * 0.5**num_updates] * 2


def test_what_was_carried_out_is_recorded_in_the_order_of_the_schedule(graph: ModelGraph) -> None:
    executor = player_of(graph)
    executor.step(*batch())
    expected = make_schedule("one_f_one_b").actions(executor.plan)
    for worker, actions in expected.items():
        assert [done.action for done in executor.recorded if done.worker == worker] == actions
    starts = [done.start_s for done in executor.recorded]
    assert starts == sorted(starts) and all(done.end_s >= done.start_s for done in executor.recorded)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_is_left_after_many_steps(graph: ModelGraph, schedule: str) -> None:
    layouts = {"interleaved": [0, 1, 0, 1], "zb_v": [0, 1, 1, 0]}
    devices = layouts.get(schedule, [0, 1])
    plan = plan_of(graph, even_cut(graph, len(devices)), micro_batches=4, devices=devices)
    executor = LocalExecutor(graph, functional.cross_entropy, sgd, plan, schedule=schedule, slots=1)
    for _ in range(3):
        executor.step(*batch(12))
    executor.drain()
    assert not executor.links.waiting
    for stage in executor.stages():
        assert not (stage.in_flight or stage.outgoing)
        extra = executor.schedule.extra_versions(1 - stage.setup.id, 1, 2)
        assert stage.versions.most_versions <= extra + 1


# --- errors -----------------------------------------------------------------------------------------------------------


class Explodes(nn.Module):
    """Raises once its weight has been stepped, in forward or in backward."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.where = where

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "forward" and self.weight != 1:
            raise ValueError("too hot")
        y = x * self.weight
        if self.where == "backward" and self.weight != 1:
            y.register_hook(self.burn)
        return y

    def burn(self, gradient: Tensor) -> Tensor:
        raise ValueError("too hot")


@pytest.mark.parametrize(
    ("where", "action", "words"), [("forward", "F1:0v1", "the forward"), ("backward", "B1:0v1", "the backward")]
)
def test_an_exception_says_stage_micro_batch_operator_and_version(where: str, action: str, words: str) -> None:
    graph = trace(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Explodes(where), nn.Linear(4, 3)), (torch.randn(4, 4),))
    executor = LocalExecutor(
        graph, functional.cross_entropy, sgd, plan_of(graph, [["input.input", "0:0", "1:0"], ["2:0", "3:0"]])
    )
    x, y = batch(8)
    executor.step(x, y)
    with pytest.raises(StageFailed, match=f"stage 1.*micro-batch 0.*version 1.*{words}.*ValueError.*too hot") as caught:
        executor.step(x, y)
    error: StageFailed = pickle.loads(pickle.dumps(caught.value))
    assert (error.stage, error.replica, error.micro_batch, error.version, error.action) == (1, 0, 0, 1, action)
    assert error.operator == ("2:0" if where == "forward" else "")
    assert isinstance(caught.value.__cause__, ValueError)


def test_embeddings_with_sparse_gradients_train_as_with_dense_ones() -> None:
    # They could not be traced: "Could not run 'aten::equal' with arguments from the 'SparseCPU' backend".
    words, labels, weights = torch.randint(50, (8, 3)), torch.randint(3, (8,)), list[Tensor]()
    for sparse in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(50, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 3))
        graph = trace(model, words)
        plan = plan_of(graph, even_cut(graph, 2), micro_batches=4, replicas=(2, 1))
        options = TrainingOptions(clip_norm=0.1)
        executor = LocalExecutor(
            graph, functional.cross_entropy, partial(torch.optim.SGD, lr=0.1), plan, options=options
        )
        for _ in range(2):
            executor.step(words, labels)
        weights.append(executor.to_module().state_dict()["0.weight"])
    assert torch.allclose(weights[0], weights[1], atol=1e-7)


def test_a_loss_that_writes_to_its_labels_writes_once_also_if_it_is_computed_again(graph: ModelGraph) -> None:
    # With recomputation it counted its labels down twice, and the gradients were those of other labels.
    def from_one(outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, labels.sub_(1).clamp_(0))

    x, y = batch()
    weights: list[Tensor] = []
    for recompute in (False, True):
        plan = plan_of(graph, even_cut(graph, 2), recompute=recompute)
        executor = LocalExecutor(graph, from_one, sgd, plan)
        executor.step(x, y.clone())
        weights.append(executor.to_module().state_dict()["0.weight"])
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"clip_norm": 1.0}, r"write options=ropewalk\.pipeline\.TrainingOptions\(clip_norm=\.\.\.\)"),
        ({"lr_schedule": None}, r"write optimizer=ropewalk\.pipeline\.OptimizerMaker\(optimizer, lr_schedule=\.\.\.\)"),
        ({"declared": "sum"}, r"write loss_fn=ropewalk\.pipeline\.Loss\(loss_fn, declared=\.\.\.\)"),
        ({"sed": 3}, r"did you mean 'seed'"),
    ],
)
def test_an_option_is_told_where_it_belongs(graph: ModelGraph, option: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=f"LocalExecutor has no argument {next(iter(option))}.*{words}"):
        player_of(graph, **option)


@pytest.mark.parametrize("hooked", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_model_with_a_hook_on_a_parameter_is_refused(hooked: str) -> None:
    # Stages trained copies without it: rows of an embedding that a hook kept still moved, and nothing was said.
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    handle = getattr(model[2].weight, hooked)(lambda gradient: None)
    graph = trace(model, (torch.randn(4, 4),))
    with pytest.raises(ValueError, match=r"parameter '2\.weight' of Sequential has a hook on its gradient, and stages"):
        player_of(graph)
    handle.remove()
    assert player_of(graph).step(*batch()).done


def test_a_loss_that_is_no_number_is_named(graph: ModelGraph) -> None:
    executor = player_of(graph, loss_fn=lambda outputs, labels: outputs)
    with pytest.raises(StageFailed, match="loss_fn must return a tensor with one element"):
        executor.step(*batch())


def test_what_makes_nothing_for_a_stage_is_refused_before_the_first_step(graph: ModelGraph) -> None:
    one = torch.optim.SGD(graph.model.parameters(), 0.1)
    wanted: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": one}, r"optimizer must be a function.*type SGD; give lambda parameters"),
        ({"optimizer": lambda parameters: None}, r"it returned NoneType; give lambda parameters"),  # pyright: ignore[reportUnknownLambdaType]
        ({"optimizer": lambda parameters: [sgd(parameters)]}, "returned list; for parameters .* groups of one"),  # pyright: ignore[reportUnknownLambdaType]
        ({"optimizer": OptimizerMaker(sgd, lambda _: None)}, "lr_schedule must return a schedule, .* NoneType; give"),  # pyright: ignore[reportUnknownLambdaType, reportArgumentType]
        ({"loss_fn": "mse"}, r"loss_fn must be a function of outputs and labels, but it is 'mse'"),
        ({"loss_fn": nn.MSELoss}, r"loss_fn is the class MSELoss; give an object of it: MSELoss\(\)"),
    ]
    for options, message in wanted:
        with pytest.raises(TypeError, match=message):
            player_of(graph, **options)
    with pytest.raises(TypeError, match=r"lr_schedule must be a function.*type StepLR; give lambda optimizer"):
        OptimizerMaker(sgd, torch.optim.lr_scheduler.StepLR(one, 1))  # type: ignore[arg-type]
    # The rate stayed as it was, and of the second only the first update told, in the middle of torch.
    for schedule, message in (
        (lambda _: torch.optim.lr_scheduler.StepLR(one, 1), "a StepLR of another optimizer.*of the argument"),
        (torch.optim.lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau needs a loss for each step"),
    ):
        with pytest.raises(ValueError, match=message):
            player_of(graph, optimizer=OptimizerMaker(sgd, schedule))  # type: ignore[arg-type]


def test_example_inputs_that_do_not_fit_the_model_are_named(graph: ModelGraph) -> None:
    plan = plan_of(graph, even_cut(graph, 2))
    x = torch.randn(4, 4)
    for example, message in (
        (torch.randn(4, 5), r"fails on the example inputs \(input \(4, 5\)\).*cannot be multiplied"),
        ((x, x), r"Sequential takes \(input\) and is given \(a tensor \(4, 4\), a tensor \(4, 4\)\)"),
    ):
        with pytest.raises(NotTraceable, match=message):
            LocalExecutor(graph.model, functional.cross_entropy, sgd, plan, example_inputs=example)


def test_an_optimizer_that_raises_is_named(graph: ModelGraph) -> None:
    class Refuses(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ValueError("not today")

    executor = player_of(graph, optimizer=lambda ps: Refuses(ps, 0.1))
    with pytest.raises(StageFailed, match=r"stage 1, replica 0, weights of version 1: the step \(U1v1\).*not today"):
        executor.step(*batch())


class WithoutOneSend(OneFOneB):
    """Leaves a value unsent."""

    name = "without_one_send"

    def stream(self, plan: Plan, **options: Any) -> ActionStream:
        stream = super().stream(plan, **options)
        admit = stream.admit

        def admit_all_but_one(num: int) -> dict[PlanWorker, list[Action]]:
            found = admit(num)
            row = found[PlanWorker(0, 0)]
            row.remove(next(action for action in row if action.kind is ActionKind.SEND and action.micro_batch == 1))
            return found

        stream.admit = admit_all_but_one
        return stream


def test_a_stall_says_who_waits_for_what(graph: ModelGraph) -> None:
    executor = player_of(graph, schedule=WithoutOneSend())
    with pytest.raises(ScheduleInvalid) as caught:
        executor.step(*batch())
    message = str(caught.value)
    assert "worker 0.0 at R0:1<1/" in message and "waits for gradient of " in message
    assert "worker 1.0 at R1:1<0/" in message and "of micro-batch 1 from stage 0 to stage 1" in message


def test_plans_that_are_not_of_the_model_are_refused(graph: ModelGraph) -> None:
    plan = plan_of(graph, even_cut(graph, 2))
    with pytest.raises(PlanInvalid, match="the plan has no edge for it"):
        LocalExecutor(graph, functional.cross_entropy, sgd, replace(plan, edges=()))
    last = plan.stages[1]
    with pytest.raises(PlanInvalid, match="in no stage, the first is"):
        LocalExecutor(
            graph,
            functional.cross_entropy,
            sgd,
            replace(plan, stages=(plan.stages[0], replace(last, operators=last.operators[:-1]))),
        )
    with pytest.raises(PlanInvalid, match="give example_inputs"):
        LocalExecutor(graph.model, functional.cross_entropy, sgd, plan)


def test_a_model_in_evaluation_is_refused_and_modules_in_evaluation_are_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    x, y = batch()
    graph = trace(model, (x,))
    plan = plan_of(graph, even_cut(graph, 2), micro_batches=1)
    for given in (graph, model):
        with pytest.raises(ValueError, match=r"Sequential is in evaluation mode as a whole.*call model.train"):
            LocalExecutor(given, functional.cross_entropy, sgd, plan, example_inputs=x)
    expected = functional.cross_entropy(model(x), y)
    model.train()
    for module in model:
        module.eval()
    executor = LocalExecutor(model, functional.cross_entropy, sgd, plan, example_inputs=x)
    assert torch.equal(executor.step(x, y).loss, expected)
    executor.step(x, y)
    trained = executor.to_module()
    assert trained.training and not any(module.training for module in trained.children())
    assert trained.get_buffer("1.num_batches_tracked") == 0


def test_an_edge_without_a_gradient_that_needs_one_is_an_error(graph: ModelGraph) -> None:
    plan = plan_of(graph, even_cut(graph, 2))
    plan = replace(plan, edges=tuple(replace(edge, gradient_bytes=0) for edge in plan.edges))
    executor = LocalExecutor(graph, functional.cross_entropy, sgd, plan)
    with pytest.raises(PlanInvalid, match="has no gradient, but stage 0 made a value that needs one"):
        executor.step(*batch())


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "pipedream"])
def test_a_player_that_failed_says_so_ever_after(graph: ModelGraph, schedule: str) -> None:
    executor = player_of(graph, schedule=schedule)
    x, y = batch()
    executor.step(x, y)
    with pytest.raises(StageFailed) as first:
        executor.step(x, y + 3)
    said = r"failed at step 1 .*StageFailed: stage 1.*IndexError.*make a new LocalExecutor"
    uses = (
        lambda: executor.step(x, y),
        executor.drain,
        executor.state_dict,
        executor.to_module,
        lambda: executor.evaluate([(x, y)]),
    )
    for use in uses:
        with pytest.raises(LocalExecutorFailed, match=said) as caught:
            use()
        assert caught.value.__cause__ is first.value
        assert caught.value.step == 1


def test_a_player_that_failed_in_a_drain_says_so(graph: ModelGraph) -> None:
    refused: list[bool] = []

    class Refuses(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if refused:
                raise ValueError("not today")
            return super().step(closure)

    executor = player_of(graph, schedule="pipedream", optimizer=lambda ps: Refuses(ps, 0.1))
    executor.step(*batch())
    refused.append(True)
    with pytest.raises(StageFailed):
        executor.drain()
    with pytest.raises(LocalExecutorFailed, match="failed in a drain after 1 steps with StageFailed"):
        executor.drain()


def test_what_is_refused_at_the_door_does_no_harm(graph: ModelGraph) -> None:
    """Nothing was admitted yet: the next step goes on as if nothing had been asked."""
    x, y = batch(8)
    layouts = {"interleaved": [0, 1, 0, 1], "pipedream": [0, 1]}
    for schedule, devices in layouts.items():
        plan = plan_of(graph, even_cut(graph, len(devices)), micro_batches=4, devices=devices)
        found: list[Tensor] = []
        for is_disturbed in (False, True):
            executor = LocalExecutor(graph, functional.cross_entropy, sgd, plan, schedule=schedule)
            executor.step(x, y)
            if is_disturbed:
                with pytest.raises(ValueError, match="labels for 7"):
                    executor.step(x, y[:7])
                with pytest.raises(NotTraceable, match="with a tensor as 'input'"):
                    executor.step("x", y)
            if is_disturbed and executor.schedule.flushes:
                with pytest.raises(ScheduleInvalid, match="3"):
                    executor.step(x[:3], y[:3])
            metrics = executor.step(x, y)
            executor.drain()
            found.append(metrics.loss)
        assert torch.equal(*found)
