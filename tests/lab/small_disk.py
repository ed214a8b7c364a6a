"""A real file system that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.plugin import require, require_mounts


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of a file system of 1 MiB, in memory."""
    require("mount", "umount")
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    require_mounts(folder, "-o", "size=1m,mode=0700")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
