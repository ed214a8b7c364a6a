"""Saved states: whole or not there, whatever happens while they are written or to the files afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.errors import CheckpointCorrupt, FileNotTrusted
from ropewalk.program.checkpoints import CheckpointFile, FolderFiles, find, load, save
from ropewalk.transport.serialization import dumps
from tests.other_users import MALLORY, as_user, needs_root


def put(folder: Path, state: Any, **facts: Any) -> Path:
    return save(folder, "store", 0, dumps(state), facts)


def state_of(folder: Path) -> Any:
    checkpoint = load(folder, "store", 0)
    assert checkpoint is not None
    return checkpoint.state


def in_child(code: str, folder: Path) -> subprocess.Popen[str]:
    """A process that runs this code, in which `put(state)` saves a checkpoint in the folder."""
    start = (
        "import os, resource, signal, sys\n"
        "from pathlib import Path\n"
        "from ropewalk.program.checkpoints import save\n"
        "from ropewalk.transport.serialization import dumps\n"
        "import numpy as np\n"
        "def put(state): save(Path(sys.argv[1]), 'store', 0, dumps(state), {})\n"
    )
    return subprocess.Popen([sys.executable, "-c", start + code, str(folder)], stdout=subprocess.PIPE, text=True)


# --- there and back ---------------------------------------------------------------------------------------------------


def test_a_state_comes_back_with_its_facts_and_its_arrays_can_be_written_to(tmp_path: Path) -> None:
    weights = np.arange(10_000.0)
    path = put(tmp_path / "new", {"weights": weights, "step": 7}, generation=3)
    checkpoint = load(tmp_path / "new", "store", 0)
    assert checkpoint is not None
    assert checkpoint.path == path and checkpoint.note == "" and checkpoint.facts == {"generation": 3}
    assert checkpoint.state["step"] == 7
    np.testing.assert_array_equal(checkpoint.state["weights"], weights)
    checkpoint.state["weights"] += 1
    assert checkpoint.state["weights"].flags.aligned


def test_there_is_none_before_the_first(tmp_path: Path) -> None:
    assert load(tmp_path, "store", 0) is None
    assert load(tmp_path / "missing", "store", 0) is None


def test_only_the_newest_two_are_kept_and_only_this_user_can_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    for step in range(5):
        put(folder, step)
    assert sorted(os.listdir(folder)) == ["store.0.checkpoint", "store.0.previous"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert state_of(folder) == 4


def test_names_that_are_no_file_names_are_kept_apart(tmp_path: Path) -> None:
    for name in ("../a", "a/b", "a", ".", "ä b"):
        for replica in range(2):
            save(tmp_path / "state", name, replica, dumps((name, replica)), {})
    for name in ("../a", "a/b", "a", ".", "ä b"):
        for replica in range(2):
            checkpoint = load(tmp_path / "state", name, replica)
            assert checkpoint is not None and checkpoint.state == (name, replica)
    assert os.listdir(tmp_path) == ["state"]


# --- damage -----------------------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_and_any_truncation_is_seen(tmp_path: Path, data: st.DataObject) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    good = put(tmp_path, {"weights": np.ones(600), "step": 1}, generation=0).read_bytes()
    path = tmp_path / "store.0.checkpoint"
    if data.draw(st.booleans()):
        position = data.draw(st.integers(0, len(good) - 1))
        damaged = bytearray(good)
        damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    else:
        damaged = bytearray(good[: data.draw(st.integers(0, len(good) - 1))])
    path.write_bytes(damaged)
    with pytest.raises(CheckpointCorrupt) as caught:
        load(tmp_path, "store", 0)
    assert caught.value.path == str(path) and f"{path} is damaged: " in str(caught.value)


def test_behind_a_damaged_checkpoint_the_one_before_is_used_with_a_note(tmp_path: Path) -> None:
    put(tmp_path, "old")
    path = put(tmp_path, "new")
    path.write_bytes(path.read_bytes()[:-1])
    checkpoint = load(tmp_path, "store", 0)
    assert checkpoint is not None and checkpoint.state == "old"
    assert checkpoint.note.startswith(
        f"store/0 goes back to the checkpoint before the newest: {path} is damaged: it is"
    )
    # The good one is still there after the next save, whatever becomes of that.
    put(tmp_path, "newer").write_bytes(b"rubbish")
    assert state_of(tmp_path) == "old"


class SavedMeanwhile(FolderFiles):
    """Files of which a writer makes another one after they were listed."""

    def __init__(self, folder: Path, states: list[Any]) -> None:
        super().__init__(folder, "store", 0)
        self._folder = folder
        self._states = states

    def kept(self) -> list[CheckpointFile]:
        found = super().kept()
        for state in self._states[:1]:
            put(self._folder, self._states.pop(0))
            if state is None:  # the writer is between its two renames
                self.current.unlink()
        return found


@pytest.mark.parametrize("states", [["much longer than before"], [None]])
def test_a_checkpoint_that_is_replaced_while_it_is_looked_for_is_not_taken_for_damaged(
    tmp_path: Path, states: list[Any]
) -> None:
    # The size was that of the file before: the new one was called damaged, and set aside.
    put(tmp_path, "short")
    last = states[-1]
    found = find(SavedMeanwhile(tmp_path, states), "store", 0)
    assert found is not None and found.unpickled() == (last or "short")
    assert not list(tmp_path.glob("*.damaged"))


def test_two_damaged_checkpoints_are_both_named_and_stay_where_they_are(tmp_path: Path) -> None:
    put(tmp_path, "old")
    put(tmp_path, "new")
    for path in tmp_path.iterdir():
        path.write_bytes(b"rubbish that is long enough to hold a prefix of a checkpoint")
    with pytest.raises(CheckpointCorrupt, match="no checkpoint of store/0 can be used") as caught:
        load(tmp_path, "store", 0)
    assert str(caught.value).count("it does not begin like a checkpoint") == 2
    assert sorted(os.listdir(tmp_path)) == ["store.0.checkpoint", "store.0.previous"]


def test_the_checkpoint_of_another_replica_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "of replica 0").rename(tmp_path / "store.1.checkpoint")
    with pytest.raises(CheckpointCorrupt, match="it is of store/0, not of store/1"):
        load(tmp_path, "store", 1)


def test_a_file_that_others_may_write_to_is_never_unpickled(tmp_path: Path) -> None:
    put(tmp_path, "state").chmod(0o602)
    with pytest.raises(FileNotTrusted, match="must not let other users write"):
        load(tmp_path, "store", 0)


@needs_root
def test_a_file_that_another_user_planted_is_never_unpickled(everybodys: Path) -> None:  # S13
    path = put(everybodys, "state")
    as_user(MALLORY, lambda: (everybodys / "store.1.checkpoint").write_bytes(b"whatever"))
    with pytest.raises(FileNotTrusted) as caught:
        load(everybodys, "store", 1)
    assert caught.value.owner == MALLORY
    os.chown(path, MALLORY, MALLORY)
    with pytest.raises(FileNotTrusted, match=f"belongs to user {MALLORY}"):
        load(everybodys, "store", 0)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_folders_and_files_are_ours_alone_under_any_umask(tmp_path: Path, umask: int) -> None:  # S12
    before = os.umask(umask)
    try:
        put(tmp_path / "above" / "states", "old")
        path = put(tmp_path / "above" / "states", "new")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.with_suffix(".previous"), *path.parents[:2])]
    assert modes == [0o600, 0o600, 0o700, 0o700]


class Stubborn:
    def __reduce__(self) -> Any:
        return int, ("not a number",)


def test_a_state_that_cannot_be_rebuilt_names_the_file(tmp_path: Path) -> None:
    path = put(tmp_path, Stubborn())
    with pytest.raises(ValueError, match="not a number") as caught:
        load(tmp_path, "store", 0)
    assert str(path) in caught.value.__notes__[-1]


def test_a_checkpoint_that_was_written_long_ago_is_read(tmp_path: Path) -> None:
    """Nothing in this folder may ever be written anew: others have such files."""
    folder = tmp_path / "kept"  # a copy, because a checkout may let others write to its files
    shutil.copytree(Path(__file__).parent / "checkpoint_of_format_1", folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o700 if path.is_dir() else 0o600)
    checkpoint = load(folder, "the store", 2)
    assert checkpoint is not None and checkpoint.facts == {"generation": 4} and not checkpoint.note
    array = checkpoint.state.pop("array")
    assert array.tolist() == [0, 1, 2, 3, 4] and array.dtype == np.float64
    assert checkpoint.state == {"step": 3, "weights": bytearray(b"abc"), "who": ("a", None)}
    checkpoint.path.unlink()
    older = load(folder, "the store", 2)
    assert older is not None and older.state == {"step": 2} and "goes back" in older.note


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", range(1, 7))
def test_a_writer_killed_before_any_step_leaves_a_whole_checkpoint(tmp_path: Path, num_steps: int) -> None:
    """Steps that open, rename or remove a file are announced by Python's audit events; it is killed at the n-th."""
    child = in_child(
        f"put('older'); put('old')\n"
        f"left = [{num_steps}]\n"
        f"def kill(event, arguments):\n"
        f"    if event in ('open', 'os.rename', 'os.remove'):\n"
        f"        left[0] -= 1\n"
        f"        if not left[0]: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"sys.addaudithook(kill)\n"
        f"put('new')\n",
        tmp_path,
    )
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert state_of(tmp_path) == ("new" if num_steps == 6 else "old")
    put(tmp_path, "newest")
    assert state_of(tmp_path) == "newest"
    assert sorted(os.listdir(tmp_path)) == ["store.0.checkpoint", "store.0.previous"]


def test_a_writer_killed_in_the_middle_of_the_file_leaves_the_one_before(tmp_path: Path) -> None:
    """Killed when the last of five parts was to be written: prefix, header, pickle, two arrays."""
    child = in_child(
        "put('old')\n"
        "left = [5]\n"
        "def kill(frame, event, called):\n"
        "    if event == 'c_call' and called.__name__ == 'write':\n"
        "        left[0] -= 1\n"
        "        if not left[0]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "state = [np.ones(125_000), np.ones(125_000)]\n"
        "sys.setprofile(kill)\n"
        "put(state)\n",
        tmp_path,
    )
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    (staged,) = tmp_path.glob(".store.0.checkpoint.*")
    assert 1_000_000 < staged.stat().st_size < 2_000_000
    assert state_of(tmp_path) == "old"
    put(tmp_path, "new")
    assert state_of(tmp_path) == "new"


def test_a_full_disk_leaves_the_checkpoint_from_before_and_says_so(tmp_path: Path) -> None:
    child = in_child(
        "put('old')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "try: put(np.ones(1_000_000))\n"
        "except OSError as error: print(error, error.__notes__)\n"
        "put('small')\n",
        tmp_path,
    )
    output, _ = child.communicate()
    assert child.returncode == 0
    assert "File too large (this process may write files of at most 1,000,000 bytes)" in output
    assert "store.0.checkpoint" in output and "store/0 was not saved" in output
    assert sorted(os.listdir(tmp_path)) == ["store.0.checkpoint", "store.0.previous"]
    assert state_of(tmp_path) == "small"
