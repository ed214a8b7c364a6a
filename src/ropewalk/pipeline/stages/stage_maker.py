"""Builds the running stages of a plan from a model's graph, each with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.stages.running_stage import RunningStage, StageSetup
from ropewalk.pipeline.stages.tensor_source import TensorSource, own_tensors, taken_like
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.stages.weight_versions import WeightVersions
from ropewalk.pipeline.stages.wiring import Wiring
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.stage_program import StageProgram


@dataclass(slots=True)
class StageMaker:
    """Builds the stages of one plan."""

    graph: ModelGraph
    wiring: Wiring
    schedule: Schedule
    loss: Loss
    on_loss: Callable[[int, Tensor, float | None], None]
    """Called with micro-batch, loss and weight at the end of the model."""
    optimizers: OptimizerMaker
    seed: int
    tensors: TensorSource | None = None
    """The source of initial parameters and buffers; None for copies of the model's own."""
    options: TrainingOptions = field(default_factory=TrainingOptions)
    device: torch.device | None = None
    """The device that stages compute on; None for the device of their initial tensors."""
    rates: dict[RunningStage, torch.optim.lr_scheduler.LRScheduler] = field(
        default_factory=dict[RunningStage, torch.optim.lr_scheduler.LRScheduler]
    )
    """The schedules of the learning rate, of the stages built so far that have one."""

    def stage(self, id: int, replica: int, program: StageProgram) -> RunningStage:
        """Build one stage on one replica.

        Raises:
            PlanInvalid: the source's tensors do not match the model's.
        """
        graph, stage = self.graph, self.wiring.plan.stages[id]
        tensors = self._tensors(program)
        # The source gives its tensors away: a second copy would make a peak of twice the stage's size.
        parameters = {
            name: nn.Parameter(tensors[name], graph.parameters[name].requires_grad) for name in program.parameters
        }
        versions = self._versions(id, parameters)
        rates = None if versions.optimizer is None else self.optimizers.schedule(versions.optimizer)
        running = RunningStage(
            self._setup(id, replica),
            program,
            versions,
            {name: tensors[name] for name in program.buffers},
            loss=self.loss if graph.output in stage.operators else None,
            output=graph.output,
            on_loss=self.on_loss,
            on_step=None if rates is None else rates.step,
            device=self.device,
        )
        if rates is not None:
            self.rates[running] = rates
        return running

    def _tensors(self, program: StageProgram) -> dict[str, Tensor]:
        """Take the initial parameters and buffers of a stage from the source, to the device."""
        graph = self.graph
        source = self.tensors or own_tensors(graph)
        tensors = taken_like(source, [*program.parameters, *program.buffers], {**graph.buffers, **graph.parameters})
        if self.device is None:
            return tensors
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def _versions(self, id: int, parameters: dict[str, nn.Parameter]) -> WeightVersions:
        """Return the weights of a stage, in as many versions as the schedule needs, with their optimizer."""
        plan, stage = self.wiring.plan, self.wiring.plan.stages[id]
        trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
        extra = self.schedule.extra_versions(plan.workers_after(id), stage.replicas, len(plan.stages))
        return WeightVersions(
            parameters,
            lambda given: self.optimizers.optimizer(dict(zip(trained, given, strict=True))),
            slots=extra + 1,
            lag=self.schedule.lag(plan, id),
            owns=True,
            rate_factor=self.optimizers.rate_factor(stage.replicas, plan.stages[0].replicas),
        )

    def _setup(self, id: int, replica: int) -> StageSetup:
        plan = self.wiring.plan
        return StageSetup(
            id,
            replica,
            plan.stages[id].recompute,
            self.schedule.splits_backward,
            plan.outputs_of(id),
            plan.inputs_of(id),
            self.wiring.state_comes_on.get(id),
            self.wiring.state_goes_on.get(id),
            self.seed,
            self.options,
            {name: position for position, name in enumerate(self.graph.parameters)},
        )
