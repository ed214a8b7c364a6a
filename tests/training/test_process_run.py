"""States that a trainer on processes takes, gives back and refuses, and what it holds of the caller's own tensors."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ropewalk as rw
from ropewalk.errors import GradientNotFinite
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training import process_run
from ropewalk.training.checkpoint_future import CheckpointFuture
from ropewalk.training.stage_deployment import StageDeployment
from ropewalk.training.trainer import Trainer
from ropewalk.training.trainer_options import ProcessOptions, Snapshots, Sources
from tests.patience import PATIENCE_S
from tests.pipeline.played_plans import even_cut, plan_of

BATCH = torch.linspace(-1, 1, 32).reshape(8, 4), torch.linspace(0, 1, 16).reshape(8, 2)


class Net(nn.Module):
    """Has a buffer and a layer that its forward does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.other = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(3, 3)
        self.register_buffer("revision", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1)


def trainer_of(
    session: rw.Session, model: nn.Module | None = None, *, snapshots: Snapshots | None = None, **options: Any
) -> Trainer:
    graph = trace(model or Net(), BATCH[0])
    plan = plan_of(graph, even_cut(graph, 2), micro_batches=2)
    processes = ProcessOptions(session=session, snapshots=snapshots or Snapshots())
    return Trainer(graph, nn.MSELoss(), sgd, plan, processes=processes, **options)


def kill_a_process_of(trainer: Trainer) -> None:
    run: Any = trainer._run
    os.kill(next(iter(run.counters().values())).pid, signal.SIGKILL)


def test_what_the_forward_does_not_read_is_in_no_checkpoint_and_not_missed(
    trainings: rw.Session, tmp_path: Path
) -> None:
    # `load` refused what `save` had written: "of another model".
    with trainer_of(trainings) as trainer:
        trainer.step(*BATCH)
        trainer.save(tmp_path).wait()
        before = trainer.state_dict()["parameters"]
        trainer.step(*BATCH)
        trainer.load(tmp_path)
        found = trainer.state_dict()["parameters"]
    assert found.keys() == {"first.weight", "first.bias", "last.weight", "last.bias"}
    assert all(torch.equal(found[name], one) for name, one in before.items())


def test_a_load_right_after_a_save_loads_what_is_still_being_written(
    trainings: rw.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It found the checkpoint before that one, or none, or with keep=1 one that was being removed.
    committed, settle, is_waited_for = process_run._committed, CheckpointFuture.settle, threading.Event()

    def committed_once_waited_for(*args: Any) -> Path:
        assert is_waited_for.wait(PATIENCE_S)
        return committed(*args)

    def settle_it(future: CheckpointFuture) -> None:
        is_waited_for.set()
        settle(future)

    monkeypatch.setattr(process_run, "_committed", committed_once_waited_for)
    monkeypatch.setattr(CheckpointFuture, "settle", settle_it)
    with trainer_of(trainings) as trainer:
        for _ in range(2):
            is_waited_for.clear()
            trainer.step(*BATCH)
            trainer.save(tmp_path, keep=1)
            saved = trainer.num_steps
            trainer.load(tmp_path)
            assert trainer.num_steps == saved


def test_a_state_of_another_model_is_refused_and_training_goes_on(trainings: rw.Session) -> None:
    # One with further parameters was taken, and one that lacked some ended the training.
    with trainer_of(trainings) as trainer:
        trainer.step(*BATCH)
        state = trainer.state_dict()
        more, fewer, other = (
            {**state, "parameters": {**state["parameters"], **changed}}
            for changed in ({"third.weight": torch.zeros(2)}, {}, {"last.weight": torch.zeros(4, 2)})
        )
        del fewer["parameters"]["last.bias"]
        without_seed = {name: one for name, one in state.items() if name != "seed"}
        for wrong, words in (
            (more, "'third.weight' is in the state, but not in the model"),
            (fewer, "'last.bias' is in the model, but not in the state"),
            (other, r"'last.weight' is torch.float32 of shape \(4, 2\) in the state"),
            (without_seed, "the state has no 'seed'"),
            (state["parameters"], "the state has no 'parameters'"),
        ):
            with pytest.raises(ValueError, match=words):
                trainer.load_state_dict(wrong)
        trainer.load_state_dict(state)
        assert trainer.num_steps == 1
        assert trainer.step(*BATCH).metrics().done


def test_a_load_that_is_interrupted_leaves_a_trainer_of_one_step(
    trainings: rw.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step went on from the loaded state, with the number of a step of the state before it."""
    with trainer_of(trainings) as trainer:
        trainer.step(*BATCH)
        state = trainer.state_dict()
        for _ in range(3):
            trainer.step(*BATCH)
        trainer.drain()

        def interrupted(*_: Any, **__: Any) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(StageDeployment, "deploy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.load_state_dict(state)
        assert trainer.step(*BATCH).step == 1
        found = trainer.state_dict()
        trainer.load_state_dict(state)
        trainer.step(*BATCH)
        wanted = trainer.state_dict()
    assert found["num_steps"] == wanted["num_steps"] == 2
    assert all(torch.equal(found["parameters"][name], one) for name, one in wanted["parameters"].items())


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_death_before_the_first_snapshot_goes_back_to_what_was_given_and_not_to_what_it_has_become(
    trainings: rw.Session, is_loaded: bool
) -> None:
    """A caller that copies the trained weights into its model, to evaluate it, trained on from those twice."""
    model, losses = Net(), list[float]()
    with trainer_of(trainings, model, snapshots=Snapshots(every=100)) as trainer:
        state = trainer.state_dict()
        if is_loaded:
            trainer.load_state_dict(state)
        steps = [trainer.step(*BATCH) for _ in range(3)]
        wanted = trainer.state_dict()["parameters"]
        with torch.no_grad():
            for tensor in (*model.parameters(), *state["parameters"].values()):
                tensor.zero_()
        kill_a_process_of(trainer)
        found = trainer.state_dict()["parameters"]
        losses = [float(step.metrics().loss) for step in steps]
        assert len(trainer.events) == 1
    assert losses == sorted(losses, reverse=True)
    assert all(torch.equal(found[name], one) for name, one in wanted.items())


def shuffled() -> Iterator[tuple[Tensor, Tensor]]:
    numbers = torch.arange(32.0).reshape(32, 1).expand(-1, 4)
    while True:
        yield from DataLoader(TensorDataset(numbers, numbers[:, :2]), batch_size=8, shuffle=True)


def test_inputs_and_labels_of_data_that_shuffles_belong_together_after_a_death(trainings: rw.Session) -> None:
    # The process in place of the dead one shuffled in another order: from then on labels were those of other samples.
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        for layer, weight in zip(model, (torch.eye(4), torch.eye(4)[:2]), strict=True):
            layer.get_parameter("weight").copy_(weight)
    sources, example = Sources(data=shuffled), (torch.zeros(8, 4),)
    with trainer_of(trainings, model, snapshots=Snapshots(every=2), sources=sources, example_inputs=example) as trainer:
        for _ in range(9):
            assert trainer.step().metrics().loss == 0.0
        kill_a_process_of(trainer)
        for _ in range(9):
            assert trainer.step().metrics().loss == 0.0
        assert len(trainer.events) == 1


@pytest.mark.parametrize("inline", [True, False])
def test_a_gradient_that_is_not_finite_is_told_with_the_step_of_the_run(trainings: rw.Session, inline: bool) -> None:
    # It was the number of the update since the trainer began: not a step of the run after a load, or with accumulation.
    options = TrainingOptions(nan="raise", accumulate=2)
    with trainer_of(trainings, options=options, inline=inline) as trainer:
        for _ in range(4):
            trainer.step(*BATCH)
        state = trainer.state_dict()
    with trainer_of(trainings, options=options, inline=inline) as trainer:
        trainer.load_state_dict(state)
        trainer.step(*BATCH)
        with pytest.raises(GradientNotFinite, match=r"in step 5, before the update that makes version 1") as caught:
            trainer.step(BATCH[0] * float("nan"), BATCH[1]).metrics()
    assert caught.value.step == 5
