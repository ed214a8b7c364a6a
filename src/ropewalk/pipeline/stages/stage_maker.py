"""The stages of a plan, made ready to run from a model's graph, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.running_stage import RunningStage, StageSetup
from ropewalk.pipeline.stages.tensor_source import TensorSource, own_tensors, taken_like
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.stages.weight_versions import OptimizerFactory, WeightVersions
from ropewalk.pipeline.stages.wiring import Wiring
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.stage_program import StageProgram

#: Makes a schedule of the learning rate for a stage's optimizer; it is stepped after each update of the stage.
RateSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]

_AN_OPTIMIZER = "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
_A_SCHEDULE = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30)"


@dataclass(frozen=True, slots=True)
class OptimizerMaker:
    """How the optimizers of stages are made.

    Args:
        make_optimizer: makes one from a stage's parameters.
        lr_schedule: makes its schedule of the learning rate; None: there is none.
        lr_scale: "pipedream": a stage with r replicas learns at r / r_0 times the rate.

    Raises:
        TypeError: they cannot be called.
    """

    make_optimizer: OptimizerFactory
    lr_schedule: RateSchedule | None = None
    lr_scale: Literal["pipedream"] | None = None

    def __post_init__(self) -> None:
        _check_function("optimizer", self.make_optimizer, _AN_OPTIMIZER)
        if self.lr_schedule is not None:
            _check_function("lr_schedule", self.lr_schedule, _A_SCHEDULE)

    def optimizer(self, parameters: list[nn.Parameter], replicas: int, of_first: int) -> torch.optim.Optimizer:
        """The optimizer of a stage with so many replicas, when the first stage has `of_first`.

        Raises:
            TypeError: what was made is none.
        """
        optimizer: object = self.make_optimizer(parameters)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"optimizer must return the optimizer of a stage, but it returned {type(optimizer).__name__}; "
                f"give {_AN_OPTIMIZER}"
            )
        if self.lr_scale == "pipedream":
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * replicas / of_first
        return optimizer


@dataclass(slots=True)
class StageMaker:
    """Makes the stages of one plan."""

    graph: ModelGraph
    wiring: Wiring
    schedule: Schedule
    loss: Loss
    #: Called with micro-batch, loss and weight where the model ends.
    on_loss: Callable[[int, Tensor, float | None], None]
    optimizers: OptimizerMaker
    seed: int
    #: Where the first numbers come from; None: copies of the model's own.
    tensors: TensorSource | None = None
    options: TrainingOptions = field(default_factory=TrainingOptions)
    #: The schedules of the learning rate of the stages that were made and have one.
    rates: dict[RunningStage, torch.optim.lr_scheduler.LRScheduler] = field(
        default_factory=dict[RunningStage, torch.optim.lr_scheduler.LRScheduler]
    )

    def stage(self, id: int, replica: int, program: StageProgram) -> RunningStage:
        """One stage on one replica.

        Raises:
            PlanInvalid: the source of its tensors has other ones than the model.
        """
        plan, graph = self.wiring.plan, self.graph
        source = self.tensors or own_tensors(graph)
        like = {**graph.buffers, **graph.parameters}
        tensors = taken_like(source, [*program.parameters, *program.buffers], like)
        # What a source gives is the stage's own: no second copy, which would be a peak of twice its size.
        parameters = {
            name: nn.Parameter(tensors[name], graph.parameters[name].requires_grad) for name in program.parameters
        }
        stage = plan.stages[id]
        extra = self.schedule.extra_versions(plan.workers_after(id), stage.replicas, len(plan.stages))
        versions = WeightVersions(
            parameters,
            lambda parameters: self.optimizers.optimizer(parameters, stage.replicas, plan.stages[0].replicas),
            slots=extra + 1,
            lag=self.schedule.lag(plan, id),
            owns=True,
        )
        rates = None
        if self.optimizers.lr_schedule is not None and versions.optimizer is not None:
            rates = self.optimizers.lr_schedule(versions.optimizer)
        setup = StageSetup(
            id,
            replica,
            stage.recompute,
            self.schedule.splits_backward,
            plan.outputs_of(id),
            plan.inputs_of(id),
            self.wiring.state_comes_on.get(id),
            self.wiring.state_goes_on.get(id),
            self.seed,
            self.options,
            {name: position for position, name in enumerate(graph.parameters)},
        )
        running = RunningStage(
            setup,
            program,
            versions,
            {name: tensors[name] for name in program.buffers},
            loss=self.loss if graph.output in stage.operators else None,
            output=graph.output,
            on_loss=self.on_loss,
            on_step=None if rates is None else rates.step,
        )
        if rates is not None:
            self.rates[running] = rates
        return running


def _check_function(name: str, given: object, example: str) -> None:
    if not callable(given):
        raise TypeError(
            f"{name} must be a function, because each stage has one of its own, but it is an object of type "
            f"{type(given).__name__}; give {example}, or the like"
        )
