"""What a trainer refuses and says before, during and after training; most of it in this thread."""

from __future__ import annotations

import functools
import re
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ropewalk as rw
from ropewalk.errors import LocalExecutorFailed, NoPlanFits, NotPicklable, NotTraceable, PlanInvalid, StageFailed
from ropewalk.pipeline import ModelGraph, Plan, trace
from ropewalk.pipeline.operator_runs import OperatorRuns
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.training.trainer_options import ProcessOptions, Sources
from tests.pipeline.played_plans import even_cut, plan_of


def network(depth: int = 2) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))


def batch() -> tuple[Tensor, Tensor]:
    return torch.ones(8, 4), torch.zeros(8, 4)


def graph_of(model: nn.Module) -> ModelGraph:
    return trace(model, (batch()[0],))


def cut(graph: ModelGraph, num_stages: int = 2, **options: Any) -> Plan:
    return plan_of(graph, even_cut(graph, num_stages), **options)


def sgd(own: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(own, 0.1)


def trainer_of(model: Any = None, plan: Any = None, *, loss_fn: Any = None, **options: Any) -> rw.Trainer:
    graph = graph_of(network()) if model is None else model
    options = {"inline": True, **options}
    plan = cut(graph) if plan is None else plan
    return rw.Trainer(graph, loss_fn or nn.MSELoss(), options.pop("optimizer", sgd), plan, **options)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("depths", [(2, 3), (3, 2)])
def test_a_plan_of_another_model_is_refused_before_any_process_starts(inline: bool, depths: tuple[int, int]) -> None:
    theirs, own = (graph_of(network(depth)) for depth in depths)
    with pytest.raises(PlanInvalid, match=r"operators of the .*make the plan from this model's profile"):
        trainer_of(own, cut(theirs), inline=inline).__enter__()


class Watched(torch.optim.SGD):
    """Counts its steps, and fails from a moment on."""

    num_steps = 0
    fails = False

    def step(self, closure: Any = None) -> None:
        if Watched.fails:
            raise ValueError("too hot")
        Watched.num_steps += 1
        super().step(closure)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(Watched, "num_steps", 0)
    monkeypatch.setattr(Watched, "fails", False)
    return Watched


def under_way(optimizer: type[Watched]) -> rw.Trainer:
    """A trainer that leaves updates to later steps, or to a drain."""
    graph = graph_of(network())
    plan = cut(graph, schedule="pipedream")
    return rw.Trainer(graph, nn.MSELoss(), lambda parameters: optimizer(parameters, 0.1), plan, inline=True)


def test_leaving_the_block_finishes_what_was_admitted(watched: type[Watched]) -> None:
    with under_way(watched) as trainer:
        trainer.step(*batch())
        before = watched.num_steps
    assert before < watched.num_steps == 2 * 4, "each stage updates after each micro-batch"


def test_leaving_the_block_raises_what_goes_wrong_then(watched: type[Watched]) -> None:
    trainer = under_way(watched)
    trainer.step(*batch())
    watched.fails = True
    with pytest.raises(StageFailed, match="too hot"), trainer:
        pass
    with pytest.raises(RuntimeError, match="was closed"):
        trainer.drain()


def test_leaving_the_block_does_not_raise_again_what_was_told() -> None:
    def explodes(outputs: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("too hot")

    with trainer_of(loss_fn=explodes) as trainer:
        with pytest.raises(StageFailed, match="too hot"):
            trainer.step(*batch())
        with pytest.raises(LocalExecutorFailed):
            trainer.drain()


@pytest.mark.parametrize("schedule", ["gpipe", "pipedream"])
def test_a_loss_that_is_not_finite_is_told_once(caplog: pytest.LogCaptureFixture, schedule: str) -> None:
    def overflows(outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, labels) * 1e38 * 1e38

    graph = graph_of(network())
    with trainer_of(graph, cut(graph, schedule=schedule), loss_fn=overflows) as trainer:
        for _ in range(3):
            trainer.step(*batch())
        trainer.drain()
        assert [event for event in trainer.events if event.startswith("the loss of step 0 is inf")]
    assert len([record for record in caplog.records if "the loss of step" in record.getMessage()]) == 1


def test_an_exception_in_the_block_ends_at_once_and_is_the_one_that_is_raised(watched: type[Watched]) -> None:
    trainer = under_way(watched)
    trainer.step(*batch())
    with pytest.raises(KeyError, match="mine"), trainer:
        raise KeyError("mine")
    assert watched.num_steps < 2 * 4


def test_a_closed_trainer_says_that_it_is_closed() -> None:
    with trainer_of() as trainer:
        trainer.step(*batch())
    for call in (
        lambda: trainer.step(*batch()),
        trainer.to_module,
        trainer.state_dict,
        trainer.drain,
        trainer.report,
        trainer.__enter__,
    ):
        with pytest.raises(RuntimeError, match="was closed; make a new one, and load what the last one saved"):
            call()
    assert (trainer.num_steps, trainer.events, len(trainer.plan.stages)) == (1, (), 2)


def test_a_number_of_devices_is_used_as_is_quickest() -> None:
    """One stage for each was the rule, also where two copies took two thirds of the time."""
    with trainer_of(graph_of(network()), 2, micro_batches=2) as trainer:
        trainer.step(*batch())
        assert trainer.plan.prediction is not None
        assert trainer.plan.prediction.simulated_speedup_over_data_parallel >= 1


@pytest.mark.parametrize(("schedule", "num_stages"), [("one_f_one_b", 2), ("gpipe", 2)])
def test_who_names_a_schedule_gets_as_many_stages_as_it_has(schedule: str, num_stages: int) -> None:
    with trainer_of(graph_of(network()), 2, micro_batches=2, schedule=schedule) as trainer:
        trainer.step(*batch())
        assert (len(trainer.plan.stages), len(trainer.plan.workers)) == (num_stages, 2)


def test_with_batch_normalisations_each_micro_batch_has_two_samples() -> None:
    # 4 samples were cut into 8 micro-batches for two devices, and the profile of one sample failed with torch's words.
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    with trainer_of(model, 2) as trainer:
        trainer.step(batch()[0][:5], batch()[1][:5])
        assert trainer.plan.micro_batches == 2
    with trainer_of(network(), 2) as trainer:
        trainer.step(*batch())
        assert trainer.plan.micro_batches == 8


def test_one_process_is_planned_from_few_measurements_and_without_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Up to 166 passes of the whole model were measured for a plan in which there is nothing to choose; and on a busy
    # machine a warning said that it may not have the best cuts.
    num_passes: list[bool] = []
    measure = OperatorRuns.measure

    def counted(runs: OperatorRuns, *, split: bool, keep: bool) -> None:
        num_passes.append(keep)
        measure(runs, split=split, keep=keep)

    monkeypatch.setattr(OperatorRuns, "measure", counted)
    for bound in ("LARGE_SPREAD", "_NOTICED_S"):
        monkeypatch.setattr(f"ropewalk.pipeline.profiles.{bound}", 1e-12)  # any spread at all
    for plan, least, most in ((None, 2, 10), (2, 40, 200)):
        num_passes.clear()
        caplog.clear()
        with rw.Trainer(network(), nn.MSELoss(), sgd, plan, inline=True) as trainer:
            trainer.step(*batch())
        assert least <= len(num_passes) <= most
        assert bool(caplog.records) is (plan == 2)


def test_what_does_not_fit_into_memory_as_copies_is_cut_into_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(network())
    num_bytes = sum(parameter.nbytes for parameter in graph.parameters.values())
    memory = ProcessOptions(resources=rw.Resources(memory=3 * num_bytes))
    with trainer_of(graph, 2, micro_batches=2, processes=memory) as trainer:
        with pytest.raises(NoPlanFits, match=r"every plan needs at least .* on some device"):
            trainer.step(*batch())
    monkeypatch.setattr("ropewalk.training.preparing.usable_memory", lambda: 6 * num_bytes)
    with trainer_of(graph, 2, micro_batches=2) as trainer:
        trainer.step(*batch())
        assert len(trainer.plan.stages) == 2


def test_a_graph_without_example_inputs_is_planned_with_the_first_step() -> None:
    with trainer_of(graph_of(network()), 2, micro_batches=2) as trainer:
        with pytest.raises(RuntimeError, match="give example_inputs, or call step first"):
            trainer.drain()
        assert trainer.step(*batch()).metrics().done
        assert len(trainer.plan.workers) == 2
    with pytest.raises(ValueError, match="with data in sources, give example_inputs too"):
        trainer_of(graph_of(network()), 2, sources=Sources(data=endless))


def endless(first_step: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield batch()


def test_step_says_whether_it_wants_a_mini_batch() -> None:
    with trainer_of(sources=Sources(data=endless)) as trainer:
        trainer.step()
        with pytest.raises(ValueError, match=r"call step\(\) without x and y"):
            trainer.step(*batch())
    with trainer_of() as trainer, pytest.raises(TypeError, match=r"step\(x, y\); or give the trainer Sources"):
        trainer.step()


def test_an_exchange_without_replicas_is_told() -> None:
    graph = graph_of(network())
    with pytest.warns(UserWarning, match=r"none of the 2 stages of this plan has any.*num_stages=1"):
        trainer_of(graph, exchange="none").__enter__()
    with warnings.catch_warnings(), trainer_of(graph, cut(graph, 1, replicas=2), exchange="none"):
        pass


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"plan": "two"},
            TypeError,
            r"plan is of type str; give a Plan from .*, or a number of devices, 1 or more, or None",
        ),
        ({"plan": 2.0}, TypeError, r"plan is of type float"),
        ({"processes": {"name": "a"}}, TypeError, r"processes is of type dict; give .*ProcessOptions\("),
        ({"options": {"nan": "skip"}}, TypeError, r"options is of type dict; give .*TrainingOptions\("),
        ({"sources": endless}, TypeError, r"sources is of type function; give .*Sources\(data="),
        ({"model": "gpt2", "plan": 1}, TypeError, "model is of type str; give a module"),
        # It was, at the first step: Linear.__init__() missing 2 required positional arguments.
        (
            {"model": nn.Linear, "plan": 1},
            TypeError,
            r"the class Linear, which .*give .*Linear\(\.\.\.\), or a",
        ),
        ({"model": even_cut, "plan": 1}, TypeError, "model is the function even_cut, which cannot be called without"),
        ({"schedule": 3}, TypeError, 'schedule is of type int; give "one_f_one_b"'),
        ({"micro_batches": "4"}, TypeError, "micro_batches is of type str; give a whole number"),
        ({"progress": 100}, TypeError, r"progress is of type int; give True, or .*Progress\("),
        ({"loss_fn": nn.MSELoss(reduction="sum")}, ValueError, "give Loss"),
    ],
)
def test_what_was_given_wrongly_is_told_at_once(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        trainer_of(**options)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        # It was: Trainer.__init__() got an unexpected keyword argument 'clip_norm'.
        ("clip_norm", "write options=ropewalk.pipeline.TrainingOptions(clip_norm=...)"),
        ("lr_schedule", "write optimizer=ropewalk.pipeline.OptimizerMaker(optimizer, lr_schedule=...)"),
        ("declared", "write loss_fn=ropewalk.pipeline.Loss(loss_fn, declared=...)"),
        ("data", "write sources=ropewalk.training.Sources(data=...)"),
        ("total_steps", "write progress=ropewalk.training.Progress(total_steps=...)"),
        ("device", "write processes=ropewalk.training.ProcessOptions(device=...)"),
        ("every", "write processes=ProcessOptions(snapshots=Snapshots(every=...)), both from ropewalk.training"),
        ("silent_s", "write processes=ProcessOptions(timeouts=TrainerTimeouts(silent_s=...)), both from ropewalk."),
        ("loss", "Trainer has no argument loss; did you mean 'loss_fn'?"),
        ("callbacks", "Trainer has no argument callbacks"),
        ("network", "Trainer has no argument network; write model="),
        ("criterion", "Trainer has no argument criterion; write loss_fn="),
    ],
)
def test_an_option_outside_its_object_is_told_where_it_belongs(option: str, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        trainer_of(**{option: 1})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fit", "write a loop: for x, y in loader: trainer.step(x, y)"),
        ("validate", "write trainer.evaluate(batches)"),
        ("backward", "write trainer.step(x, y)"),
        ("model", "write trainer.to_module()"),
        ("steps", "'Trainer' object has no attribute 'steps'"),
    ],
)
def test_a_method_of_another_trainer_is_told_with_what_to_write(name: str, message: str) -> None:
    trainer = trainer_of()
    assert not hasattr(trainer, name)
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(trainer, name)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.layer(x if scale is None else x * scale)


def test_a_pair_in_place_of_inputs_and_labels_is_told() -> None:
    with trainer_of(network(), 1, micro_batches=2) as trainer:
        with pytest.raises(NotTraceable, match=r"give them apart: step\(x, y\)"):
            trainer.step(batch())
        trainer.step(*batch())
        with pytest.raises(NotTraceable, match=r"give them apart: step\(x, y\)"):
            trainer.step(list(batch()))
        trainer.step(*batch())
    with trainer_of(Scaled(), 1, micro_batches=2) as trainer:  # which takes a pair as its inputs
        with pytest.raises(StageFailed, match=r"labels were None.*give both, step\(x, y\)"):
            trainer.step(batch())


def test_a_sum_may_be_declared_as_one() -> None:
    assert Loss(nn.MSELoss(reduction="sum"), "sum").declared == "sum"


def detached(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.detach() - labels).square().mean()


@torch.no_grad()
def without_gradients(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).square().mean()


@pytest.mark.parametrize("loss_fn", [detached, without_gradients])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_loss_without_a_gradient_is_refused(loss_fn: Any, recompute: bool) -> None:
    graph = graph_of(network())
    with (
        trainer_of(graph, cut(graph, recompute=recompute), loss_fn=loss_fn) as trainer,
        pytest.raises(StageFailed, match="has no gradient, so nothing would be trained"),
    ):
        trainer.step(*batch())


def test_a_frozen_last_stage_trains_those_before_it() -> None:
    model = network()
    model[1].requires_grad_(False)
    with trainer_of(graph_of(model)) as trainer:
        trainer.step(*batch())
        trained = trainer.to_module()
    assert not torch.equal(trained[0].weight, model[0].weight)  # type: ignore[index]


def test_a_model_that_cannot_learn_is_refused_at_the_beginning() -> None:
    with pytest.raises(ValueError, match="none of them requires a gradient"):
        trainer_of(graph_of(network().requires_grad_(False))).__enter__()


class Masked(nn.Module):
    """Mixes the positions of each sample by a mask that is the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(torch.softmax(x @ x.transpose(1, 2) + mask, 2) @ x)


@pytest.mark.parametrize("num_samples", [5, 6])
def test_an_input_that_is_not_by_sample_is_never_cut_even_with_as_many_samples(num_samples: int) -> None:
    torch.manual_seed(3)
    mask, x = torch.randn(6, 6), torch.randn(num_samples, 6, 3)
    model = Masked()
    graph = trace(model, (torch.randn(4, 6, 3), mask))
    assert graph.whole_inputs == {"input.mask"}
    with trainer_of(graph, cut(graph, micro_batches=2)) as trainer:
        loss = trainer.step((x, mask), torch.zeros_like(x)).metrics().loss
    assert torch.allclose(loss, model(x, mask).square().mean())


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, output: Tensor, labels: Tensor) -> Tensor:
        return (output - labels).square().mean()


def unsendable_schedule() -> Any:
    return functools.partial(print, threading.Lock())


@pytest.mark.parametrize(
    ("option", "make", "path"),
    [
        ("loss_fn", Locked, "loss_fn.lock"),
        ("optimizer", lambda: OptimizerMaker(sgd, unsendable_schedule()), "lr_schedule.args[0]"),
    ],
)
def test_an_argument_that_cannot_be_sent_is_named_as_the_user_knows_it(
    option: str, make: Any, path: str, trainings: rw.Session
) -> None:
    # It was args[0] of a service that the user had never heard of.
    processes = ProcessOptions(session=trainings)
    with pytest.raises(NotPicklable, match="cannot be sent to another process") as caught:
        trainer_of(inline=False, example_inputs=batch()[:1], processes=processes, **{option: make()}).__enter__()
    assert caught.value.path == path


def test_on_processes_leaving_the_block_finishes_too_and_a_closed_trainer_says_so(trainings: rw.Session) -> None:
    graph = graph_of(network())
    own = ProcessOptions(session=trainings)
    with trainer_of(graph, cut(graph, schedule="pipedream"), inline=False, processes=own) as trainer:
        step = trainer.step(*batch())
    assert step.done
    with pytest.raises(RuntimeError, match="was closed"):
        trainer.to_module()
    late = trainer_of(graph, loss_fn=detached, inline=False, processes=own)
    with pytest.raises(StageFailed, match="has no gradient"), late:
        late.step(*batch())
