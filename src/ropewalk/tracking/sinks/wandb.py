"""Runs in Weights & Biases (https://wandb.ai), online or in its offline files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.tracking.artifacts import is_as_recorded
from ropewalk.tracking.records import ArtifactKept, ConfigIs, LabelsAre, Metrics, NoteAdded, RunRecord, StateIs
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink, optional_module

_AXIS = "step"


class WandbRun(RunSink):
    """Copies a run into a project of W&B. Metrics have the axis "step", because W&B's own steps cannot go back.

    Args:
        mode: "online", "offline" or "disabled"; None: `WANDB_MODE`, or "online".
        entity: user or team; None: the user's own.

    Raises:
        ModuleNotFoundError: wandb is not installed.
    """

    def __init__(self, *, mode: str | None = None, entity: str | None = None) -> None:
        self._module = optional_module("wandb", "wandb", "wandb")
        self._mode, self._entity = mode, entity
        self._run: Any = None
        self._exit_code = 0

    def __repr__(self) -> str:
        return f"WandbRun(mode={self._mode!r}, entity={self._entity!r})"

    def begin(self, run: CopiedRun) -> None:
        self._run = self._module.init(
            project=run.project,
            entity=self._entity,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            mode=self._mode,
            settings=self._module.Settings(x_disable_stats=True, console="off", silent=True),
        )
        self._run.define_metric("*", step_metric=_AXIS)

    def apply(self, batch: Sequence[RunRecord]) -> None:
        for record in (one.record for one in batch):
            match record:
                case Metrics():
                    prefix = f"{record.group}/" if record.group else ""
                    numbers = dict(zip((prefix + name for name in record.names), record.values, strict=True))
                    self._run.log({**numbers, _AXIS: record.step})
                case ConfigIs():
                    self._run.config.update(record.values, allow_val_change=True)
                case LabelsAre():
                    kept = [tag for tag in self._run.tags or () if tag not in record.removed]
                    self._run.tags = (*kept, *(label for label in record.added if label not in kept))
                case NoteAdded():
                    self._run.notes = record.text
                case ArtifactKept(kind="image") if is_as_recorded(record):
                    self._run.log({record.name: self._module.Image(record.path), _AXIS: record.step})
                case ArtifactKept() if record.kind != "image" and is_as_recorded(record):
                    self._run.save(record.path, policy="now")
                case StateIs():
                    self._exit_code = int(record.state == "failed")
                case _:
                    pass

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)
            self._run = None


__all__ = ["WandbRun"]
