"""What the arguments of a trainer describe, and how a run is made of it.

model, example or first mini-batch ─▶ prepared: graph, plan, schedule ─▶ run: on processes, or in this thread
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ropewalk.exchange.exchange_maker import MakesExchange
from ropewalk.pipeline.local_executor import LocalExecutor, check_hooks, check_plan
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.stages.tensor_source import TensorSource
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.tracking.observed_run import Track
from ropewalk.training.assignment import FromSource, FromTensors, Origin, TrainingConfig
from ropewalk.training.blueprint import Blueprint
from ropewalk.training.controller import Controller
from ropewalk.training.further_copies import FurtherCopies
from ropewalk.training.inline_run import InlineRun
from ropewalk.training.preparing import Model, beside, plan_for, see
from ropewalk.training.process_run import ProcessRun
from ropewalk.training.run import TrainingRun
from ropewalk.training.stage_device import kind_of_device, on_cpu
from ropewalk.training.stage_fleet import StageFleet
from ropewalk.training.target import TrainerTarget
from ropewalk.training.trainer_options import ProcessOptions, Sources


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that was seen with data, and how it is trained."""

    graph: ModelGraph
    source: TensorSource | None
    """Where processes read parameters and buffers from; None: they get those of the graph."""
    plan: Plan
    schedule: Schedule
    device: str
    """What stages compute on: "cpu", "cuda" or one GPU."""

    @property
    def own(self) -> Mapping[str, torch.Tensor]:
        """The parameters and buffers of the graph, by name."""
        return {**self.graph.buffers, **self.graph.parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """What the arguments of `Trainer` describe; the names are the same where the value is, and explained there."""

    model: Model
    plan: Plan | int
    schedule: str | Schedule | None
    micro_batches: int | None
    example: Any
    loss: Loss
    optimizers: OptimizerMaker
    options: TrainingOptions
    exchange: MakesExchange | None
    inline: bool
    seed: int
    sources: Sources
    processes: ProcessOptions

    def __post_init__(self) -> None:
        if self.sources.data is not None and not self.needs_no_step:
            raise ValueError(
                "with data in sources, give example_inputs too: the model must be seen before the first mini-batch is"
            )

    @property
    def needs_no_step(self) -> bool:
        """Whether all processes can start before a mini-batch was seen; tracing and profiling a model need one."""
        return self.example is not None or (isinstance(self.model, ModelGraph) and isinstance(self.plan, Plan))

    def prepared(self, x: Any) -> PreparedModel:
        """See the model with its inputs, and plan its training.

        Raises:
            PlanInvalid: the plan does not fit the model.
            ScheduleInvalid: the schedule cannot run the plan.
            ValueError: a parameter of the model has a hook.
        """
        wanted = self.processes.device
        device = "" if wanted is None else kind_of_device(wanted)
        graph, source = see(
            self.model, x, seed=self.seed, device=device if self.inline else "", weights=self.sources.weights
        )
        device = device or kind_of_device(None, [*graph.buffers.values(), *graph.parameters.values()])
        plan = self._planned(graph, x, device)
        check_hooks(graph)
        check_plan(graph, plan)
        schedule = self.options.schedule(plan.schedule if self.schedule is None else self.schedule)
        schedule.check(plan)
        if self.exchange is not None and all(stage.replicas == 1 for stage in plan.stages):
            warnings.warn(
                f"exchange= averages the gradients of a stage's replicas, and none of the {len(plan.stages)} stages of "
                f"this plan has any, so that it does nothing; for two replicas of the whole model plan with "
                f"ropewalk.pipeline.plan(model, x, devices=2, num_stages=1)",
                stacklevel=5,
            )
        return PreparedModel(graph, source, plan, schedule, device)

    def run(self, prepared: PreparedModel, *, track: Track, shown_as: TrainerTarget) -> TrainingRun:
        """Begin to train.

        Args:
            prepared: the model, from `prepared`.
            track: what keeps the run of the trainer, if it is tracked.
            shown_as: what `ropewalk ps` and the page show in place of the program of the processes.
        """
        return self._inline_run(prepared) if self.inline else self._process_run(prepared, track, shown_as)

    def _planned(self, graph: ModelGraph, x: Any, device: str) -> Plan:
        plan, num = self.plan, self.micro_batches
        if isinstance(plan, Plan):
            return plan if num is None else replace(plan, micro_batches=num)
        return plan_for(
            plan,
            self.model,
            graph,
            x,
            schedule=self.schedule,
            micro_batches=num,
            device=device,
            autocast=self.options.autocast,
            resources=self.processes.resources,
        )

    def _process_run(self, prepared: PreparedModel, track: Track, shown_as: TrainerTarget) -> ProcessRun:
        num, processes = len(prepared.plan.workers), self.processes
        snapshots = processes.snapshots
        fleet = StageFleet(
            processes,
            self._config(prepared),
            num if snapshots is None else max(2, num),
            timeouts=processes.timeouts,
            track=track,
            shown_as=shown_as,
        )
        origin: Origin = FromSource()
        if prepared.source is None:  # copies, because a death may come after the caller has changed its model
            own = on_cpu(prepared.own)
            origin = FromTensors({name: tensor.detach().clone() for name, tensor in own.items()})
        controller = Controller(
            fleet,
            prepared.graph,
            prepared.plan,
            prepared.schedule,
            origin,
            seed=self.seed,
            timeouts=processes.timeouts,
            pace=None if snapshots is None else snapshots.pace(),
            copies=FurtherCopies(None if snapshots is None else snapshots.where),
        )
        try:
            return ProcessRun(controller, prepared.graph, self.loss)
        except BaseException:
            controller.close(0.5)
            raise

    def _config(self, prepared: PreparedModel) -> TrainingConfig:
        blueprint = Blueprint.of(prepared.graph)
        if any(tensor.is_cuda for tensor in prepared.own.values()):
            blueprint = blueprint.on(torch.device("cpu"))
        return TrainingConfig(
            blueprint,
            self.loss,
            self.optimizers,
            self.options,
            self.exchange,
            self.sources.data,
            prepared.source,
            prepared.device,
        )

    def _inline_run(self, prepared: PreparedModel) -> InlineRun:
        executor = LocalExecutor(
            prepared.graph,
            self.loss,
            self.optimizers,
            prepared.plan,
            schedule=prepared.schedule,
            seed=self.seed,
            options=self.options,
            exchange=self.exchange,
        )
        return InlineRun(executor, self.sources.data, self.seed, lambda batch: beside(prepared.graph.model, batch))
