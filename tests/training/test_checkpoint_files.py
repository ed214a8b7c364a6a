"""The folder of checkpoints: whatever happens while one is written, the old or the new one is whole."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.errors import CheckpointCorrupt
from ropewalk.training import checkpoint, checkpoint_files, stage_fleet
from ropewalk.training.checkpoint_files import begin, read, saves
from ropewalk.training.checkpoint_parts import write_part


def state_of(value: float, names: str = "ab", size: int = 5) -> dict[str, Any]:
    """A state in which everything is one number."""
    return {
        "parameters": {name: torch.full((size,), value) for name in names},
        "buffers": {},
        "optimizer": {name: {"step": torch.tensor(value), "exp_avg": torch.full((size,), value)} for name in names},
        "options": {name: {"lr": value} for name in names},
        "rates": {},
    }


def save(folder: Path, value: int, **options: Any) -> Path:
    """Saved by two writers, of which each holds one parameter."""
    with begin(folder, value, **options) as writing:
        parts = [write_part(writing.path, name, state_of(value, name)) for name in "ab"]
        return writing.commit(parts, {"num_steps": value, "seed": 0})


def found(path: Path) -> float:
    """The number of the newest checkpoint, all of whose bytes are checked."""
    newest = checkpoint.read_manifest(path)
    newest.verify()
    state = newest.whole_state()
    values = {
        *(value for kind in ("parameters", "optimizer") for one in state[kind].values() for value in numbers(one)),
        *(one["lr"] for one in state["options"].values()),
        float(state["num_steps"]),
        float(newest.step),
    }
    assert len(values) == 1, f"a mixture of {values}"
    return values.pop()


def numbers(value: Any) -> set[float]:
    if isinstance(value, dict):
        return set.union(*map(numbers, value.values()))
    return set(value.reshape(-1).tolist())


# --- there and back ---------------------------------------------------------------------------------------------------


def test_the_newest_of_a_folder_is_read_or_the_one_that_is_named(tmp_path: Path) -> None:
    first, second = save(tmp_path / "new" / "run", 20), save(tmp_path / "new" / "run", 10)
    assert [path.name for path in (first, second)] == ["0001-step-20", "0002-step-10"]
    assert found(tmp_path / "new" / "run") == 10
    assert found(first) == 20
    assert sorted(os.listdir(first)) == [
        "manifest.json",
        *(f"state-{part}.{ending}" for part in "ab" for ending in ("json", "safetensors")),
        *(f"weights-{part}.safetensors" for part in "ab"),
    ]


@pytest.mark.parametrize(("keep", "kept"), [(1, [5]), (2, [5, 4]), (9, [5, 4, 3, 2, 1]), (None, [5, 4, 3, 2, 1])])
def test_as_many_are_kept_as_asked_for_newest_first(tmp_path: Path, keep: int | None, kept: list[int]) -> None:
    for step in range(1, 6):
        save(tmp_path, step, keep=keep)
    assert [found(path) for path in saves(tmp_path)] == kept
    assert len(os.listdir(tmp_path)) == len(kept)


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save(tmp_path, 3)
    assert [path.name for path in saves(tmp_path)] == ["0002-step-3", "0001-step-3"]


def test_what_else_lies_in_the_folder_stays(tmp_path: Path) -> None:
    for name in ("notes.tmp", "0001-step-3.txt", "step-7"):
        (tmp_path / name).mkdir()
    for step in range(3):
        save(tmp_path, step, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["0001-step-3.txt", "0003-step-2", "notes.tmp", "step-7"]


def test_an_abandoned_one_leaves_nothing(tmp_path: Path) -> None:
    writing = begin(tmp_path, 3)
    write_part(writing.path, "a", state_of(3, "a"))
    writing.abandon()
    writing.abandon()
    assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError, match="committed or abandoned already"):
        writing.commit([], {})


def test_a_folder_can_be_named_from_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with begin("runs/a", 3) as writing:
        assert writing.path.is_absolute()


# --- what does not fit ------------------------------------------------------------------------------------------------


def test_two_parts_with_the_same_name_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    writing = begin(tmp_path, 2)
    parts = [write_part(writing.path, part, state_of(2, names)) for part, names in (("0.0", "ab"), ("1.0", "bc"))]
    with pytest.raises(ValueError, match=r"the parts '0\.0' and '1\.0' both hold 'b'"):
        writing.commit(parts, {})
    assert found(tmp_path) == 1 and len(os.listdir(tmp_path)) == 1


def test_a_part_that_was_written_elsewhere_is_missed(tmp_path: Path) -> None:
    """Such as on a host that does not share the folder."""
    writing = begin(tmp_path / "here", 2)
    (tmp_path / "elsewhere").mkdir()
    part = write_part(tmp_path / "elsewhere", "0.0", state_of(2))
    with pytest.raises(FileNotFoundError, match=r"part '0\.0' was written; all hosts must reach the folder") as caught:
        writing.commit([part], {})
    assert caught.value.__notes__ == ["The checkpoint of step 2 was not saved; those before it are unchanged."]


@pytest.mark.parametrize("keep", [0, -1, 1.5, "all"])
def test_a_keep_that_makes_no_sense_is_refused(tmp_path: Path, keep: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^keep .* a number of checkpoints, 1 or more, or None"):
        begin(tmp_path, 1, keep=keep)


def test_a_step_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step must be a number of steps, 0 or more, not -1"):
        begin(tmp_path, -1)


def test_a_file_is_not_taken_for_a_checkpoint_that_is_not_there_yet(tmp_path: Path) -> None:
    """A script that ignores FileNotFoundError would begin anew, and say nothing."""
    file = tmp_path / "last.pt"
    file.write_bytes(b"of torch.save")
    with pytest.raises(NotADirectoryError, match=r"last.pt is a file, and a checkpoint is in a folder .*torch.load"):
        read(file)


def test_a_folder_without_checkpoints_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        read(tmp_path / "missing")
    (tmp_path / "0009-step-3.tmp").mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint in .*; one is a folder such as 0001-step-20"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"0007-step-3 is not there"):
        read(tmp_path / "0007-step-3")


# --- interrupted ------------------------------------------------------------------------------------------------------

#: What is called where files are touched.
TOUCHING = {"open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "flock", "flush"}


@pytest.fixture
def elsewhere(trainings: rw.Session) -> Iterator[Callable[..., Any]]:
    """Calls a function in a process that may fork, and be limited: from what stages are forked from, as they are."""
    with rw.Pool(1, session=trainings, preload=stage_fleet.PRELOADED) as pool:
        yield lambda function, *args: pool.apply(function, args)


def killed_at_each_call(folder: Path) -> tuple[list[str], list[str]]:
    """Kill a writer at the n-th call that touches files, for n = 1, 2, ... until it is done before; read after each.

    Returns:
        What was found each time, and what the folder holds after one more save.
    """
    save(folder, 1, keep=1)
    outcomes: list[str] = []
    value, is_killed = 1, True
    while is_killed:
        child = os.fork()
        if not child:
            sys.setprofile(killing(len(outcomes) + 1))
            save(folder, value + 1, keep=1)
            sys.setprofile(None)
            os._exit(0)
        is_killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        now = found(folder)
        outcomes.append({value: "old", value + 1: "new"}.get(int(now), "wrong"))
        value = int(now)
    save(folder, value + 1, keep=1)
    assert found(folder) == value + 1
    return outcomes, os.listdir(folder)


def killing(at: int) -> Callable[[FrameType, str, Any], None]:
    left = at

    def kill(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal left
        if event == "c_call" and called.__name__ in TOUCHING:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    return kill


def test_a_writer_killed_at_any_call_leaves_the_old_one_or_the_new(
    tmp_path: Path, elsewhere: Callable[..., Any]
) -> None:
    outcomes, left = elsewhere(killed_at_each_call, tmp_path)
    assert "wrong" not in outcomes and len(outcomes) > 30
    # The old one until the rename, and the new one at each call after it, while the old one is removed.
    first_new = outcomes.index("new")
    assert first_new > 20 and outcomes[first_new:].count("new") >= 5
    assert "old" not in outcomes[first_new:]
    assert len(left) == 1


def written_where_files_are_limited(folder: Path) -> tuple[str, list[str]]:
    """Return what a writer is told whose files must not become large, and what it has written by then."""
    save(folder, 1)
    limit, hard = 1_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    with begin(folder, 2) as writing:
        write_part(writing.path, "a", state_of(2, "a"))
        with pytest.raises(OSError) as raised:
            write_part(writing.path, "b", state_of(2, "b", size=1_000_000))
        left = [path.name for path in writing.path.iterdir()]
    save(folder, 3)
    return f"{raised.value} {raised.value.__notes__}", left


def test_a_full_disk_leaves_the_checkpoints_from_before_and_says_so(
    tmp_path: Path, elsewhere: Callable[..., Any]
) -> None:
    """The limit is on files of the part that is written last: those before it were written already."""
    said, left = elsewhere(written_where_files_are_limited, tmp_path)
    assert "File too large" in said and "at most 1,000,000 bytes" in said and "Part 'b' of the checkpoint in" in said
    assert any(name.startswith("weights-a") for name in left)
    assert not any(name.startswith("weights-b") for name in left)
    assert [found(path) for path in saves(tmp_path)] == [3, 1]


@pytest.mark.parametrize("at", range(1, 10))
def test_a_disk_that_fails_at_any_sync_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Six files of two parts, the manifest, its folder; and the folder of all, when the new one has its name."""
    save(tmp_path, 1)
    syncs = iter(range(1, 100))
    real = os.fsync

    def fsync(fd: int) -> None:
        if next(syncs) == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 2)
    assert found(tmp_path) == (2 if at == 9 else 1)
    save(tmp_path, 3)
    assert found(tmp_path) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_another_writer_at_work_is_left_alone(tmp_path: Path) -> None:
    first = begin(tmp_path, 1)
    part = write_part(first.path, "whole", state_of(1))
    save(tmp_path, 2)
    first.commit([part], {"num_steps": 1, "seed": 0})
    assert [found(path) for path in saves(tmp_path)] == [2, 1]


def test_readers_see_whole_checkpoints_while_others_come_and_go(tmp_path: Path) -> None:
    save(tmp_path, 0, keep=1)
    seen: list[float] = []
    ended = threading.Event()
    failures: list[BaseException] = []

    def look() -> None:
        while not ended.is_set():
            try:
                seen.append(found(tmp_path))
            except FileNotFoundError as error:
                if "because newer ones came" not in str(error):
                    failures.append(error)
            except BaseException as error:
                failures.append(error)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for step in range(1, 26):
            save(tmp_path, step, keep=1)
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert len(set(seen)) > 2 and found(tmp_path) == 25


def test_a_listing_that_missed_the_checkpoint_that_came_for_the_one_that_went_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    lists: list[list[Path]] = [[]]
    monkeypatch.setattr(checkpoint_files, "saves", lambda folder: lists.pop() if lists else saves(folder))
    assert found(tmp_path) == 1
    assert not lists


def test_a_checkpoint_that_is_removed_once_it_was_found_is_not_the_newest_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    lists = [[tmp_path / "0000-step-0", *saves(tmp_path)]]
    monkeypatch.setattr(checkpoint_files, "saves", lambda folder: lists.pop() if lists else saves(folder))
    assert found(tmp_path) == 1
    assert not lists


# --- damaged ----------------------------------------------------------------------------------------------------------


def test_a_damaged_manifest_names_the_older_checkpoints(tmp_path: Path) -> None:
    old, new = save(tmp_path, 1), save(tmp_path, 2)
    with open(new / "manifest.json", "r+b") as file:
        file.truncate(50)
    with pytest.raises(CheckpointCorrupt) as caught:
        read(tmp_path)
    assert caught.value.path == str(new / "manifest.json")
    assert str(old) in caught.value.__notes__[-1]
    assert found(old) == 1


@pytest.mark.parametrize("words", ['"step":1', '"seed":0', '"parameters":["a"]', '"format":1,"sha256":"'])
def test_a_manifest_that_says_something_else_is_damaged(tmp_path: Path, words: str) -> None:
    manifest = save(tmp_path, 1) / "manifest.json"
    text = manifest.read_text()
    at = text.index(words) + len(words) - 1
    manifest.write_text(f"{text[:at]}{chr(ord(text[at]) ^ 1)}{text[at + 1 :]}")
    with pytest.raises(CheckpointCorrupt, match=r"manifest\.json is damaged"):
        read(tmp_path)


def test_a_checkpoint_of_a_later_format_says_so(tmp_path: Path) -> None:
    manifest = save(tmp_path, 1) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'{"format":1,', b'{"format":7,'))
    with pytest.raises(CheckpointCorrupt, match="it is of format 7, and this version of Ropewalk reads format 1"):
        read(tmp_path)


@pytest.mark.parametrize("file", ["manifest.json", "weights-a.safetensors", "state-a.json", "state-b.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    (save(tmp_path, 1) / file).unlink()
    with pytest.raises(CheckpointCorrupt, match=rf"{file} is missing"):
        found(tmp_path)
