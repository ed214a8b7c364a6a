"""Which files of records are copied to other places."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ropewalk.tracking import artifacts
from ropewalk.tracking.artifacts import is_as_recorded
from ropewalk.tracking.records import ArtifactKept


def test_a_file_is_copied_elsewhere_if_whoever_recorded_it_has_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process on another host could name any file of the launcher's, which went to MLflow or Weights & Biases; and
    one that is only there kept all records behind it from being copied, as it was tried again and again.
    """
    monkeypatch.setattr(artifacts, "_told", [])
    digest = hashlib.sha256(b"weights").hexdigest()
    (tmp_path / "weights").write_bytes(b"weights")
    (tmp_path / "link").symlink_to("weights")
    os.mkfifo(tmp_path / "pipe")

    def is_copied(path: str, sha256: str = digest) -> bool:
        return is_as_recorded(ArtifactKept("a\nb", str(tmp_path / path), "file", 7, sha256, 0.0))

    assert is_copied("weights") and not caplog.records
    for path in ("none", "link", "pipe", ".", "nul\0"):
        assert not is_copied(path)
    assert not is_copied("weights", "") and not is_copied("weights", "0" * 64)
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("the artifact a\\nb is not copied to other places: ") and "/none is not on this host" in told
