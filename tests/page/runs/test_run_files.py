"""What is shown as an image, and what is only saved."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.page.runs.run_files import IMAGE_TYPES, _content, _opened, _opened_below, image_type


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF....WEBP", "image/webp"),
        (b"<svg xmlns=", ""),
        (b"<html>", ""),
        (b"", ""),
    ],
)
def test_an_image_is_what_begins_as_one(start: bytes, kind: str) -> None:
    assert image_type(start) == kind


def test_no_image_can_hold_a_script() -> None:
    assert "image/svg+xml" not in IMAGE_TYPES


def test_a_database_names_no_file_outside_the_folder_of_runs(tmp_path: Path) -> None:
    store: Any = SimpleNamespace(where="postgresql://host/runs", folder=tmp_path / "runs")
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "secret").write_text("theirs")
    (tmp_path / "runs" / "a" / "own").write_text("ours")
    (tmp_path / "runs" / "a" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "runs" / "out").symlink_to(tmp_path)
    with _opened(store, str(tmp_path / "runs" / "a" / "own")) as file:
        assert file.read() == b"ours"
    for path in ("secret", "runs/a/link", "runs/out/secret", "runs/a/../../secret", "runs/a"):
        with pytest.raises(PermissionError):
            _opened(store, str(tmp_path / path))


def test_a_record_gives_no_reader_a_file_outside_of_the_folder_of_its_run(tmp_path: Path) -> None:
    """A task on another host could name any file of the launcher's user, and whoever had a reader's token saved it."""
    store: Any = SimpleNamespace(where=str(tmp_path / "runs.db"), folder=tmp_path / "runs")
    run = tmp_path / "elsewhere" / "a"
    run.mkdir(parents=True)
    (tmp_path / "key").write_text("theirs")
    (run / "own").write_text("ours")
    (run / "link").symlink_to(tmp_path / "key")
    (run / "out").symlink_to(tmp_path)
    with _opened(store, str(run / "own"), run) as file:
        assert file.read() == b"ours"
    for path in (tmp_path / "key", run / "link", run / "out" / "key", run / ".." / ".." / "key", run):
        with pytest.raises(PermissionError):
            _opened(store, str(path), run)
    with _opened(store, str(tmp_path / "key")) as file:
        assert file.read() == b"theirs", "an owner gets what a run keeps where it always was"


def test_folder_that_becomes_a_link_after_it_was_looked_at_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "secret").write_text("theirs")
    (tmp_path / "runs" / "a").symlink_to(tmp_path)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match="a"):
        _opened_below(tmp_path / "runs", ("a", "secret"))
    assert len(os.listdir("/dev/fd")) == before


def test_a_file_is_closed_if_the_visitor_leaves_before_anything_of_it_is_sent(tmp_path: Path) -> None:
    # The page kept a descriptor for each of them: browsers that drop a download let it run out of them.
    (tmp_path / "artifact").write_bytes(b"ours")
    store: Any = SimpleNamespace(where="runs.db")
    before = len(os.listdir("/dev/fd"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        _content(_opened(store, str(tmp_path / "artifact")))
        gc.collect()
    assert len(os.listdir("/dev/fd")) == before
