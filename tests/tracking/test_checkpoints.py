from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from ropewalk.errors import CheckpointCorrupt
from ropewalk.tracking import checkpoints
from ropewalk.tracking.checkpoints import CheckpointFolder, CheckpointPolicy, SavedCheckpoint, read_checkpoint


def saved(step: float, score: float | None = None) -> SavedCheckpoint:
    return SavedCheckpoint(step, Path(), 0, 0.0, score)


# --- the policy -------------------------------------------------------------------------------------------------------


def test_the_newest_and_the_best_are_kept() -> None:
    all_of_them = [saved(1, 0.9), saved(2, 0.5), saved(3, 0.7), saved(4, 0.6)]
    policy = CheckpointPolicy(keep=2, best="accuracy")
    assert [one.step for one in policy.to_remove(all_of_them)] == [2]
    assert [one.step for one in CheckpointPolicy(keep=1).to_remove(all_of_them)] == [3, 2, 1]
    assert CheckpointPolicy(keep=None).to_remove(all_of_them) == []


def test_the_least_is_best_of_a_loss_and_nan_never_is() -> None:
    all_of_them = [saved(1, float("nan")), saved(2, 0.5), saved(3, 0.7), saved(4)]
    assert CheckpointPolicy(best="loss", mode="min").best_of(all_of_them) == saved(2, 0.5)
    assert CheckpointPolicy(best="loss", mode="min").best_of([saved(4)]) is None


@given(
    st.lists(st.tuples(st.integers(0, 50), st.none() | st.floats()), unique_by=lambda one: one[0]), st.integers(1, 4)
)
def test_what_is_kept_is_as_many_as_was_said_and_the_best(facts: list[tuple[int, float | None]], keep: int) -> None:
    all_of_them = [saved(step, score) for step, score in facts]
    policy = CheckpointPolicy(keep=keep, best="score")
    gone = policy.to_remove(all_of_them)
    kept = [one for one in all_of_them if one not in gone]
    assert {one.step for one in sorted(all_of_them, key=lambda one: one.step)[-keep:]} <= {one.step for one in kept}
    assert len(kept) <= keep + 1
    assert policy.best_of(kept) == policy.best_of(all_of_them)


def test_some_steps_are_due() -> None:
    assert [step for step in range(1, 10) if CheckpointPolicy(every=4).is_due(step)] == [4, 8]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"keep": 0}, {"mode": "least"}])
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CheckpointPolicy(**wrong)  # type: ignore[arg-type]


# --- files ------------------------------------------------------------------------------------------------------------


def test_what_was_written_is_restored_and_others_can_read_the_tensors(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.restore() is None and folder.saved() == []
    folder.write(3, {"w": torch.arange(3), "n": 1})
    folder.write(20, {"w": torch.arange(4.0), "n": 2}, score=0.5)
    found = folder.restore()
    assert found is not None and found.step == 20 and found.state["n"] == 2
    assert torch.equal(found.state["w"], torch.arange(4.0))
    assert torch.equal(load_file(found.path / "state.safetensors")["w"], torch.arange(4.0))
    assert [(one.step, one.score) for one in folder.saved()] == [(3, None), (20, 0.5)]
    earlier = folder.restore(3)
    assert earlier is not None and earlier.state["n"] == 1
    with pytest.raises(LookupError, match="no checkpoint of step 4; there are 3, 20"):
        folder.restore(4)


@pytest.mark.parametrize("step", [3, 2.5])
def test_a_whole_step_is_restored_as_an_int(tmp_path: Path, step: float) -> None:
    # `for step in range(saved.step, total)` failed: the step was 3.0.
    folder = CheckpointFolder(tmp_path)
    folder.write(step, {})
    restored = folder.restore()
    assert restored is not None and restored.step == step and type(restored.step) is type(step)


@pytest.mark.parametrize("file", ["state.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_one_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, damage: str
) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.write(1, {"w": torch.ones(8)})
    path = folder.write(2, {"w": torch.zeros(8)}).path / file
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[:-5])
    found = folder.restore()
    assert found is not None and found.step == 1
    assert "step-2" in caplog.text and "it is skipped" in caplog.text
    with pytest.raises(CheckpointCorrupt):
        folder.restore(2)


def test_it_is_an_error_if_all_are_damaged(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    (folder.write(1, {}).path / "checkpoint.json").write_text("{}")
    with pytest.raises(CheckpointCorrupt, match="step-1"):
        folder.restore()


def test_a_manifest_of_somebody_else_leads_to_no_memory_and_no_type(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    path = folder.write(1, {"w": torch.ones(2)}).path / "checkpoint.json"
    manifest = json.loads(path.read_text())["manifest"]
    for tensors in ({"w": ["F32", [1 << 60]]}, {"w": ["PICKLE", [2]]}, {"w": ["F32", [-1]]}):
        content = json.dumps({**manifest, "tensors": tensors}).encode()
        digest = checkpoints.hashlib.sha256(content).hexdigest()
        path.write_bytes(b'{"format":1,"sha256":"%s","manifest":%s}' % (digest.encode(), content))
        with pytest.raises(CheckpointCorrupt):
            folder.restore(1)


def test_a_full_disk_leaves_earlier_ones_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.write(1, {"n": 1})

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_new_file", full)
        with pytest.raises(OSError, match="No space"):
            folder.write(2, {"n": 2})
    assert os.listdir(tmp_path) == ["step-1"]
    folder.write(2, {"n": 2})
    assert sorted(os.listdir(tmp_path)) == ["step-1", "step-2"]


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".step-2.tmp").mkdir()
    (tmp_path / ".step-2.tmp" / "state.safetensors").write_bytes(b"half")
    folder = CheckpointFolder(tmp_path)
    assert folder.restore() is None
    folder.write(2, {})
    assert os.listdir(tmp_path) == ["step-2"]


def test_a_step_can_be_written_again(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.write(2, {"n": 1})
    folder.write(2, {"n": 2})
    found = folder.restore()
    assert found is not None and found.state == {"n": 2} and os.listdir(tmp_path) == ["step-2"]


def test_a_pinned_one_is_kept_until_it_is_unpinned(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in (10, 20, 30):
        folder.write(step, {"x": step})
    folder.pin(10)
    folder.pin(10)
    assert folder.pinned() == {10} and folder.prune(CheckpointPolicy(keep=1), 30) == [20]
    restored = folder.restore(10)
    assert restored is not None and restored.state == {"x": 10}
    folder.unpin(10)
    assert folder.pinned() == set() and folder.prune(CheckpointPolicy(keep=1), 30) == [10]
    with pytest.raises(LookupError, match="has no checkpoint of step 10; there are 30"):
        folder.pin(10)


def test_after_a_return_to_an_earlier_step_later_ones_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    folder = CheckpointFolder(tmp_path)
    for step in (10, 20):
        folder.write(step, {})
    (tmp_path / "step-20" / "checkpoint.json").write_text("damaged")
    folder.write(11, {})
    assert folder.prune(CheckpointPolicy(keep=1), 11) == [10, 20]
    assert os.listdir(tmp_path) == ["step-11"]


def test_what_is_no_checkpoint_is_not_called_damaged(tmp_path: Path) -> None:
    saved = CheckpointFolder(tmp_path / "run" / "checkpoints").write(3, {"x": 1})
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        with pytest.raises(
            FileNotFoundError, match=f"{path} is not the folder of a checkpoint; there are {saved.path}"
        ):
            read_checkpoint(path)
    with pytest.raises(FileNotFoundError, match=r"step-4 is not the folder of a checkpoint$"):
        read_checkpoint(saved.path.with_name("step-4"))
