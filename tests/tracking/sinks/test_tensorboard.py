from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ropewalk.tracking.images import png
from ropewalk.tracking.records import ArtifactKept, Metrics, NoteAdded, RunRecord
from ropewalk.tracking.sinks.sink import CopiedRun
from ropewalk.tracking.sinks.tensorboard import TensorBoardFiles

pytest.importorskip("tensorboard")


def test_tensorboard_reads_scalars_images_and_texts(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    image = tmp_path / "grid.png"
    image.write_bytes(png(b"\0" * 6, 3, 2, 1))
    sink = TensorBoardFiles()
    sink.begin(CopiedRun("a1", "digits", "first", tmp_path, {"lr": 0.1}, 1))
    sink.apply([RunRecord("a1", Metrics("", ["loss"], [0.5 / step], step, 100.0 + step)) for step in (1, 2)])
    sink.apply([RunRecord("a1", Metrics("validation", ["accuracy"], [0.75], 2, 102.0))])
    digest = hashlib.sha256(image.read_bytes()).hexdigest()
    sink.apply([RunRecord("a1", ArtifactKept("grid", str(image), "image", 9, digest, 103.0, 2, "image/png"))])
    for path in (
        image,
        tmp_path / "none",
    ):  # of a process on another host, which names a file here that it has not read
        forged = ArtifactKept("stolen", str(path), "image", 9, "0" * 64, 103.0, 2, "image/png")
        sink.apply([RunRecord("a1", forged)])
    sink.apply([RunRecord("a1", NoteAdded("a remark", 104.0))])
    sink.close()
    sink.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0})
    found.Reload()
    assert [(one.step, one.value, one.wall_time) for one in found.Scalars("loss")] == [(1, 0.5, 101), (2, 0.25, 102)]
    assert found.Scalars("validation/accuracy")[0].value == 0.75
    assert found.Tags()["images"] == ["grid"]
    assert found.Images("grid")[0].encoded_image_string == image.read_bytes()
    assert b"a remark" in found.Tensors("notes")[0].tensor_proto.string_val[0]
