"""Runs in MLflow (https://mlflow.org): a tracking server, or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.tracking.artifacts import is_as_recorded
from ropewalk.tracking.records import (
    ArtifactKept,
    ConfigIs,
    LabelsAre,
    Metrics,
    NoteAdded,
    RunRecord,
    StateIs,
)
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink, optional_module

_STATES = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "paused": "SCHEDULED", "running": "RUNNING"}
_MOST_METRICS = 1000
"""Metrics in one request of MLflow's interface."""
_MOST_VALUE = 6000
"""Characters of the value of a parameter."""


class MLflowRun(RunSink):
    """Copies a run into an experiment that is named after its project.

    Steps are whole numbers there, so fractions are cut off. A run that goes on after a pause goes on there too.

    Args:
        uri: address of the tracking server, or of a store; None: `MLFLOW_TRACKING_URI`, or MLflow's default.
        artifacts: whether artifacts and images are copied too.

    Raises:
        ModuleNotFoundError: neither mlflow nor mlflow-skinny is installed.
    """

    def __init__(self, uri: str | None = None, *, artifacts: bool = True) -> None:
        self._module = optional_module("mlflow", "mlflow-skinny", "mlflow")
        self._entities = optional_module("mlflow.entities", "mlflow-skinny", "mlflow")
        self._uri, self._artifacts = uri, artifacts
        self._client: Any = None
        self._run_id = ""

    def __repr__(self) -> str:
        return f"<MLflowRun {self._run_id}>" if self._run_id else "<MLflowRun, not begun>"

    def begin(self, run: CopiedRun) -> None:
        self._client = self._module.MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self._client.create_experiment(run.project)
        mark = {"ropewalk.run": run.id}
        earlier = self._client.search_runs([experiment], f"tags.`ropewalk.run` = '{run.id}'", max_results=1)
        made = earlier[0] if earlier else self._client.create_run(experiment, run_name=run.name, tags=mark)
        self._run_id = made.info.run_id
        if not earlier:
            self._parameters(run.config)

    def apply(self, batch: Sequence[RunRecord]) -> None:
        records = [one.record for one in batch]
        metrics = [
            self._entities.Metric(_name(record.group, name), value, int(record.time * 1000), int(record.step))
            for record in records
            if isinstance(record, Metrics)
            for name, value in zip(record.names, record.values, strict=True)
        ]
        for begin in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[begin : begin + _MOST_METRICS])
        for record in records:
            match record:
                case ConfigIs():
                    for name, value in record.values.items():  # a parameter cannot change there, a tag can
                        self._client.set_tag(self._run_id, f"config.{name}", str(value)[:_MOST_VALUE])
                case LabelsAre():
                    for label in record.added:
                        self._client.set_tag(self._run_id, f"label.{label}", "true")
                    for label in record.removed:
                        self._client.delete_tag(self._run_id, f"label.{label}")
                case NoteAdded():
                    self._client.set_tag(self._run_id, "mlflow.note.content", record.text)
                case ArtifactKept() if self._artifacts and is_as_recorded(record):
                    folder = record.name.rpartition("/")[0] or None
                    self._client.log_artifact(self._run_id, record.path, folder)
                case StateIs():
                    self._client.update_run(self._run_id, status=_STATES[record.state])
                case _:
                    pass

    def close(self) -> None:
        self._client = None

    def _parameters(self, config: Any) -> None:
        parameters = [self._entities.Param(str(name), str(value)[:_MOST_VALUE]) for name, value in config.items()]
        for begin in range(0, len(parameters), 100):  # in one request
            self._client.log_batch(self._run_id, params=parameters[begin : begin + 100])


def _name(group: str, name: str) -> str:
    return f"{group}/{name}" if group else name


__all__ = ["MLflowRun"]
