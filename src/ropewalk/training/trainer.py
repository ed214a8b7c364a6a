"""`Trainer`: trains a model as a plan says, on real processes.

    with ropewalk.Trainer(model, loss_fn, optimizer, plan=4) as trainer:
        for x, y in loader:
            trainer.step(x, y)
        model = trainer.to_module()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from torch import Tensor, nn

from ropewalk.engines.resources import Resources
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.losses import Declared, Loss
from ropewalk.pipeline.stages.stage_maker import OptimizerMaker, RateSchedule
from ropewalk.pipeline.stages.weight_versions import OptimizerFactory
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.processes.session import Session
from ropewalk.training.assignment import FromTensors, Training
from ropewalk.training.blueprint import Blueprint
from ropewalk.training.controller import Controller
from ropewalk.training.patience import Patience
from ropewalk.training.process_run import ProcessRun
from ropewalk.training.stage_fleet import StageFleet
from ropewalk.training.step_handle import StepHandle


class Trainer:
    """Trains a model as a plan says, one process for each worker of the plan."""

    def __init__(
        self,
        model: nn.Module | ModelGraph,
        loss_fn: Callable[[Any, Any], Any],
        optimizer: OptimizerFactory,
        plan: Plan | int,
        *,
        schedule: str | Schedule | None = None,
        micro_batches: int | None = None,
        example_inputs: Any = None,
        seed: int = 0,
        loss: Declared = "mean",
        lr_schedule: RateSchedule | None = None,
        lr_scale: Literal["pipedream"] | None = None,
        snapshot_every: int | None = 16,
        engine: str | None = None,
        session: Session | None = None,
        resources: Resources | None = None,
        environment: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        name: str = "trainer",
    ) -> None:
        self._model = model
        self._plan = plan
        self._schedule = schedule
        self._micro_batches = micro_batches
        self._example = example_inputs
        self._seed = seed
        self._loss = Loss(loss_fn, loss)
        self._optimizers = OptimizerMaker(optimizer, lr_schedule, lr_scale)
        self._snapshot_every = snapshot_every
        self._patience = patience or Patience()
        self._where = dict(engine=engine, session=session, resources=resources, environment=environment)
        self._name = name
        self._run: ProcessRun | None = None

    def __enter__(self) -> Trainer:
        if isinstance(self._model, ModelGraph) or self._example is not None:
            self._begin(self._example)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(None if kind is None else 0.5)

    def close(self, grace_s: float | None = None) -> None:
        """End all processes; may be called twice."""
        if self._run is not None:
            self._run.close(grace_s)

    def step(self, x: Any, y: Any) -> StepHandle:
        """Train on one mini-batch; returns as soon as it is handed over."""
        run = self._run or self._begin(x)
        number = run.num_steps
        metrics, num_samples, wait = run.step(x, y)
        return StepHandle(number, num_samples, metrics, wait)

    def drain(self) -> None:
        """Finish all that was admitted."""
        self._under_way.drain()

    def state_dict(self) -> dict[str, Any]:
        """All that a new trainer needs to go on from here; drains first."""
        return self._under_way.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was called."""
        self._under_way.load_state_dict(state)

    def to_module(self) -> nn.Module:
        """A copy of the model with the newest weights and buffers; drains first."""
        return self._under_way.to_module()

    @property
    def _under_way(self) -> ProcessRun:
        if self._run is None:
            raise RuntimeError("this trainer has not begun; use it in a with block, and call step first")
        return self._run

    def _begin(self, example: Any) -> ProcessRun:
        graph = self._model if isinstance(self._model, ModelGraph) else trace(self._model, example)
        assert isinstance(self._plan, Plan)
        plan = self._plan if self._micro_batches is None else replace(self._plan, micro_batches=self._micro_batches)
        order = make_schedule(plan.schedule if self._schedule is None else self._schedule)
        order.check(plan)
        training = Training(Blueprint.of(graph), self._loss, self._optimizers)
        tensors: dict[str, Tensor] = {**graph.buffers, **graph.parameters}
        num = len(plan.workers) if self._snapshot_every is None else max(2, len(plan.workers))
        fleet = StageFleet(self._name, training, num, patience=self._patience, **self._where)
        controller = Controller(
            fleet,
            graph,
            plan,
            order,
            FromTensors(tensors),
            seed=self._seed,
            patience=self._patience,
            snapshot_every=self._snapshot_every,
        )
        self._run = ProcessRun(controller, graph, self._loss)
        return self._run
