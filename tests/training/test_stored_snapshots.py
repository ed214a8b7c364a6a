"""Snapshots in files come back as they were, or are refused before anything in them is looked at."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ropewalk.errors import CheckpointCorrupt  # noqa: E402
from ropewalk.pipeline.plans import PlanWorker  # noqa: E402
from ropewalk.pipeline.schedules.streams import Cut  # noqa: E402
from ropewalk.pipeline.stages.packed_tensors import TensorBlock  # noqa: E402
from ropewalk.pipeline.stages.snapshots import WorkerSnapshot  # noqa: E402
from ropewalk.training.stored_snapshots import SnapshotFolder, read, write  # noqa: E402

WEIGHT = torch.arange(3000.0)
CONTENTS = {0: {"parameters": {"weight": WEIGHT}, "newest": 7, "buffers": {}}}


def snapshot(cut: Cut | None = None) -> WorkerSnapshot:
    block = TensorBlock()
    packed = block.pack(CONTENTS)
    return WorkerSnapshot(PlanWorker(0, 1), cut or Cut(0, 8, (2, 2)), packed, block.memory, block.size_bytes)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    stored = write(str(tmp_path), 3, snapshot())
    found = read(stored)
    assert (found.worker, found.cut, found.size_bytes) == (PlanWorker(0, 1), Cut(0, 8, (2, 2)), snapshot().size_bytes)
    stages = found.stages()
    assert torch.equal(stages[0].pop("parameters")["weight"], WEIGHT)
    assert stages == {0: {"newest": 7, "buffers": {}}}
    facts = os.stat(stored.path)
    assert (stat.S_IMODE(facts.st_mode), facts.st_size) == (0o600, stored.size_bytes)


class Planted:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a pickle of a stranger was read",)


@pytest.mark.parametrize("change", ["planted", "flipped", "longer", "shorter", "empty"])
def test_what_somebody_changed_is_refused_before_it_is_unpickled(tmp_path: Path, change: str) -> None:
    stored = write(str(tmp_path), 3, snapshot())
    path = Path(stored.path)
    content = path.read_bytes()
    planted = pickle.dumps(Planted())
    path.write_bytes(
        {
            "planted": b"".join(
                [(1).to_bytes(8, "little"), len(planted).to_bytes(8, "little"), planted.ljust(len(content) - 16)]
            ),
            "flipped": content[:-1] + bytes([content[-1] ^ 1]),
            "longer": content + b" ",
            "shorter": content[:-1],
            "empty": b"",
        }[change]
    )
    with pytest.raises(CheckpointCorrupt, match="is not the one that was written there"):
        read(stored)


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    stored = write(str(tmp_path), 3, snapshot())
    real = Path(stored.path)
    elsewhere = tmp_path / "elsewhere"
    real.rename(elsewhere)
    real.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic link"):
        read(stored)
    with pytest.raises(FileExistsError):
        write(str(tmp_path), 3, snapshot())


def test_what_cannot_be_written_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(str(tmp_path), 3, snapshot())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_has_the_newest_snapshots_alone_and_goes_with_its_run(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "made")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    old, new = (write(str(folder.path), 0, snapshot(Cut(0, num, (num,)))) for num in (4, 8))
    folder.keep_only([new])
    assert not Path(old.path).exists()
    assert read(new).cut == Cut(0, 8, (8,))
    other = SnapshotFolder(tmp_path / "made")
    assert folder.path.exists(), "another run removes only what nobody holds"
    for one in (folder, other, folder):
        one.close()
    assert list((tmp_path / "made").iterdir()) == []


def test_what_a_killed_launcher_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = SnapshotFolder(tmp_path)
    left._claim.close()  # pyright: ignore[reportPrivateUsage]  # as the kernel does
    SnapshotFolder(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_two_snapshots_of_one_worker_are_two_files(tmp_path: Path) -> None:
    taken = [(0, Cut(0, 8, (2, 2))), (1, Cut(0, 8, (2, 2))), (0, Cut(0, 8, (3, 3))), (0, Cut(8, 4, (2, 2)))]
    assert len({write(str(tmp_path), epoch, snapshot(cut)).path for epoch, cut in taken}) == 4


def test_folders_that_are_made_for_it_are_closed_to_others_under_any_umask(tmp_path: Path) -> None:  # S12
    before = os.umask(0)
    try:
        folder = SnapshotFolder(tmp_path / "deep/er")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "deep", tmp_path / "deep/er", folder.path)]
    folder.close()
    assert modes == [0o700] * 3
