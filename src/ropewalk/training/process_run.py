"""A training on processes, as the trainer asks for it: mini-batches are cut here, states and files put together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.pipeline.plans import Plan, Worker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.micro_batches import split
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.model_inputs import as_arguments
from ropewalk.training.assignment import FromState
from ropewalk.training.controller import Controller
from ropewalk.training.recorder import WorkerRecord


class ProcessRun:
    """Drives a controller.

    Args:
        controller: not started yet.
        graph: of the model.
        loss: for metrics.
    """

    def __init__(self, controller: Controller, graph: ModelGraph, loss: Loss) -> None:
        self._controller = controller
        self._graph = graph
        self._loss = loss
        self.num_steps = 0
        controller.start()

    @property
    def plan(self) -> Plan:
        """As it is carried out now; deaths may have changed it."""
        return self._controller.plan

    @property
    def schedule(self) -> Schedule:
        """As it is carried out now."""
        return self._controller.schedule

    @property
    def events(self) -> list[str]:
        """What happened that a person should know."""
        return self._controller.events

    def step(self, x: Any, y: Any) -> tuple[StepMetrics, int, Callable[[], None]]:
        """Admit a mini-batch."""
        args, kwargs = as_arguments(x)
        controller = self._controller
        pieces = split(self._graph.bind(*args, **kwargs), y, controller.plan.micro_batches, step=self.num_steps)
        if controller.schedule.flushes:
            controller.schedule.check(replace(controller.plan, micro_batches=len(pieces)))
        metrics = StepMetrics(len(pieces), self._loss)
        controller.admit(pieces, metrics)
        self.num_steps += 1
        return metrics, sum(one.num_samples for one in pieces), lambda: controller.wait_until(lambda: metrics.done)

    def drain(self) -> None:
        """Finish all that was admitted."""
        self._controller.drain()

    def state_dict(self) -> dict[str, Any]:
        """All that a new run needs to go on from here."""
        found: dict[str, Any] = {}
        states = self._controller.ask(lambda client, _: client.state.future(), "the state of the stages")
        for worker in sorted(states, reverse=True):
            for kind, named in states[worker].items():
                found.setdefault(kind, {}).update(named)
        return {**found, "num_steps": self.num_steps, "seed": self._controller.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        controller = self._controller
        controller.drain()
        controller.seed, self.num_steps = state["seed"], state["num_steps"]
        controller.redeploy(controller.plan, controller.schedule, FromState(state))

    def to_module(self) -> nn.Module:
        """A copy of the model with the newest weights and buffers."""
        state = self.state_dict()
        module = copy.deepcopy(self._graph.model)
        with torch.no_grad():
            for kind, named in (("parameters", module.named_parameters()), ("buffers", module.named_buffers())):
                for name, tensor in named:
                    if name in state[kind]:
                        tensor.copy_(state[kind][name])
        return module

    def records(self) -> Mapping[Worker, WorkerRecord]:
        """What each worker did of late."""
        return self._controller.ask(lambda client, _: client.record.future(), "the records of the stages")

    def close(self, grace_s: float | None = None) -> None:
        """End all processes; may be called twice."""
        self._controller.close(grace_s)
