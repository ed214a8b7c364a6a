"""The interface between a trainer and its run: on processes (`process_run`), or in this thread (`inline_run`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.training.checkpoint_future import CheckpointFuture
from ropewalk.training.counters import WorkerCounters
from ropewalk.training.history import TrainingHistory
from ropewalk.training.recorder import WorkerRecord
from ropewalk.training.worker_sample import WorkerSample


class AdmittedStep(NamedTuple):
    """An admitted step."""

    metrics: StepMetrics
    wait: Callable[[], None]
    """Waits until the metrics are known."""


class TrainingRun(Protocol):
    """A training run under way. Every method but `step` and `close` drains first."""

    @property
    def num_steps(self) -> int:
        """The number of steps of the whole run, those of a loaded state included."""
        ...

    @property
    def plan(self) -> Plan: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def events(self) -> list[str]: ...

    def step(self, x: Any, y: Any) -> AdmittedStep: ...
    def step_of_own_data(self) -> AdmittedStep: ...
    def drain(self) -> None: ...
    def evaluate(self, batches: Iterable[tuple[Any, Any]]) -> float: ...
    def predict(self, x: Any) -> Any: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def save(self, folder: Path, keep: int | None) -> CheckpointFuture: ...
    def load(self, folder: Path) -> None: ...
    def resize(self, stage: int, replicas: int) -> None: ...
    def records(self) -> Mapping[PlanWorker, WorkerRecord]: ...
    def counters(self) -> Mapping[PlanWorker, WorkerCounters]: ...
    def offsets(self, counters: Mapping[PlanWorker, WorkerCounters]) -> Mapping[PlanWorker, int]: ...

    # What follows may be called by any thread at any time, and drains nothing.

    @property
    def history(self) -> TrainingHistory:
        """What happened so far."""
        ...

    @property
    def seats(self) -> Mapping[PlanWorker, int]:
        """By worker, the index of its process in the program."""
        ...

    @property
    def has_exchange(self) -> bool:
        """Whether an exchange averages the gradients of replicas."""
        ...

    def ask_samples(
        self, but: Collection[PlanWorker], with_actions: bool, with_exchanges: bool
    ) -> Mapping[PlanWorker, Future[WorkerSample | None]]:
        """Ask the workers for samples; see `StageSamples`."""
        ...

    def clock_offsets(self, samples: Mapping[PlanWorker, WorkerSample]) -> Mapping[PlanWorker, int]:
        """Return the offsets of the clocks of workers on other hosts, measured once for each deployment."""
        ...

    def snapshots_panel(self) -> dict[str, Any] | None:
        """Return the data of the panel "snapshots"; None if none are taken."""
        ...

    def close(self, grace_s: float | None = None) -> None: ...
