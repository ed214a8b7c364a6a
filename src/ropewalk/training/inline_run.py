"""A training run in this thread, by the local executor: for debugging, and as the reference for processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.running_stage import RunningStage
from ropewalk.training.checkpoint import read_manifest, save
from ropewalk.training.checkpoint_future import CheckpointFuture
from ropewalk.training.counters import WorkerCounters
from ropewalk.training.history import TrainingHistory
from ropewalk.training.own_data import DataShard, MakesData, OwnData
from ropewalk.training.recorder import WorkerRecord, records_of
from ropewalk.training.run import AdmittedStep
from ropewalk.training.stage_device import on_cpu
from ropewalk.training.worker_sample import WorkerSample, worker_sample

_NUM_LOOKED_AT = 8192
"""The newest actions in which a look finds the last step."""


class InlineRun:
    """Drives a local executor.

    Args:
        player: the executor, which has not run anything yet.
        data: makes mini-batches, for `step_of_own_data`; None: the caller passes them.
        seed: the seed of the run.
        place: moves a batch to the device of the model.
    """

    def __init__(self, player: LocalExecutor, data: MakesData | None, seed: int, place: Callable[[Any], Any]) -> None:
        self._player = player
        self._place = place
        self._make_data = data
        self._data = self._own_data(seed)
        self.events: list[str] = []
        self.history = TrainingHistory()

    @property
    def num_steps(self) -> int:
        return self._player.num_steps

    @property
    def plan(self) -> Plan:
        return self._player.plan

    @property
    def schedule(self) -> Schedule:
        return self._player.schedule

    def step(self, x: Any, y: Any) -> AdmittedStep:
        began_s = time.monotonic()
        metrics = self._player.step(self._place(x), self._place(y))
        self.history.step_done(began_s, time.monotonic(), is_repeated=False)
        return AdmittedStep(metrics, lambda: self._player.finish(metrics))

    def step_of_own_data(self) -> AdmittedStep:
        assert self._data is not None
        return self.step(*self._data.batch(self.num_steps))

    def drain(self) -> None:
        self._player.drain()

    def evaluate(self, batches: Iterable[tuple[Any, Any]]) -> float:
        return self._player.evaluate(map(self._place, batches))

    def predict(self, x: Any) -> Any:
        return self._player.predict(self._place(x))

    def state_dict(self) -> dict[str, Any]:
        return on_cpu(self._player.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._player.load_state_dict(state)
        self._data = self._own_data(state["seed"])

    def save(self, folder: Path, keep: int | None) -> CheckpointFuture:
        path = save(folder, self.state_dict(), keep=keep, schedule=self.schedule.name)
        return CheckpointFuture.done_at(path)

    def load(self, folder: Path) -> None:
        self.load_state_dict(read_manifest(folder).whole_state())

    def resize(self, stage: int, replicas: int) -> None:
        raise PlanInvalid(
            f"stage {stage} cannot be given {replicas} replicas in this thread; take state_dict, and load it into a "
            f"trainer with another plan"
        )

    def records(self) -> Mapping[PlanWorker, WorkerRecord]:
        return records_of(self._player.recorded)

    def counters(self) -> Mapping[PlanWorker, WorkerCounters]:
        return {worker: WorkerCounters.of(worker, stages) for worker, stages in self._stages.items()}

    @property
    def _stages(self) -> Mapping[PlanWorker, list[RunningStage]]:
        return {worker: list(one.stages.values()) for worker, one in self._player.workers.items()}

    def offsets(self, counters: Mapping[PlanWorker, WorkerCounters]) -> Mapping[PlanWorker, int]:
        return {}

    # --- looking at it, from any thread -------------------------------------------------------------------------------

    @property
    def seats(self) -> Mapping[PlanWorker, int]:
        return {}

    @property
    def has_exchange(self) -> bool:
        return bool(self._player.exchanges)

    def ask_samples(
        self, but: Collection[PlanWorker], with_actions: bool, with_exchanges: bool
    ) -> Mapping[PlanWorker, Future[WorkerSample | None]]:
        recorded = list(islice(reversed(self._player.recorded.copy()), _NUM_LOOKED_AT)) if with_actions else []
        records = records_of(reversed(recorded))
        found: dict[PlanWorker, Future[WorkerSample | None]] = {}
        for worker, stages in self._stages.items():
            found[worker] = Future()
            sample = worker_sample(
                worker,
                stages,
                epoch=0,
                step=self.num_steps - 1,
                num_steps=self.num_steps,
                exchanges={
                    member.stage: bound.exchange.report()
                    for member, bound in self._player.exchanges.items()
                    if PlanWorker(self.plan.placement[member.stage], member.replica) == worker
                },
                record=records.get(worker) if with_actions else None,
            )
            found[worker].set_result(sample)
        return found

    def clock_offsets(self, samples: Mapping[PlanWorker, WorkerSample]) -> Mapping[PlanWorker, int]:
        return {}

    def snapshots_panel(self) -> dict[str, Any] | None:
        return None

    def close(self, grace_s: float | None = None) -> None:
        self._player.close()

    def _own_data(self, seed: int) -> OwnData | None:
        if self._make_data is None:
            return None
        return OwnData(self._make_data, self._player.graph, DataShard(0, 1, self.plan.micro_batches), seed)
