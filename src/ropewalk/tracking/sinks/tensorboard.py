"""Event files of TensorBoard (https://www.tensorflow.org/tensorboard): scalars, images, and texts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.tracking.artifacts import is_as_recorded
from ropewalk.tracking.records import ArtifactKept, Metrics, NoteAdded, RunRecord
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink, optional_module


class TensorBoardFiles(RunSink):
    """Writes event files: `tensorboard --logdir FOLDER` shows them. TensorFlow is not needed.

    Steps are whole numbers there, so fractions are cut off. The name of a scalar is "group/name".

    Args:
        folder: the folder; None: "tensorboard" in the folder of the run.

    Raises:
        ModuleNotFoundError: the package tensorboard is not installed.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._writers = optional_module("tensorboard.summary.writer.event_file_writer", "tensorboard", "tensorboard")
        self._events = optional_module("tensorboard.compat.proto.event_pb2", "tensorboard", "tensorboard")
        self._summaries = optional_module("tensorboard.compat.proto.summary_pb2", "tensorboard", "tensorboard")
        self._texts = optional_module("tensorboard.plugins.text.summary_v2", "tensorboard", "tensorboard")
        self._file: Any = None

    def __repr__(self) -> str:
        return f"TensorBoardFiles({str(self._folder)!r})" if self._folder else "TensorBoardFiles()"

    def begin(self, run: CopiedRun) -> None:
        self._file = self._writers.EventFileWriter(str(self._folder or run.folder / "tensorboard"))
        self._text("config", json.dumps(dict(run.config), indent=2, default=str), time.time())

    def apply(self, batch: Sequence[RunRecord]) -> None:
        for record in (one.record for one in batch):
            match record:
                case Metrics():
                    prefix = f"{record.group}/" if record.group else ""
                    values = [
                        self._summaries.Summary.Value(tag=prefix + name, simple_value=value)
                        for name, value in zip(record.names, record.values, strict=True)
                    ]
                    self._add(self._summaries.Summary(value=values), record.time, record.step)
                case ArtifactKept(kind="image", media_type="image/png") if is_as_recorded(record):
                    image = self._summaries.Summary.Image(encoded_image_string=Path(record.path).read_bytes())
                    value = self._summaries.Summary.Value(tag=record.name, image=image)
                    self._add(self._summaries.Summary(value=[value]), record.time, record.step or 0)
                case NoteAdded():
                    self._text("notes", record.text, record.time)
                case _:
                    pass
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, summary: Any, when: float, step: float) -> None:
        self._file.add_event(self._events.Event(wall_time=when, step=int(step), summary=summary))

    def _text(self, name: str, text: str, when: float) -> None:
        self._add(self._texts.text_pb(name, text), when, 0)


__all__ = ["TensorBoardFiles"]
