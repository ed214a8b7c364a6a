"""The folder of a training's checkpoints: each is a folder of files that is either complete or absent.

    begin:   FOLDER/0007-step-20.tmp is made, and locked while its writer lives
    parts:   every writer puts files of its own into it, each synced to the disk
    commit:  manifest.json last ─▶ sync ─▶ rename to FOLDER/0007-step-20 ─▶ sync ─▶ the oldest are removed

The first number counts the saves: the newest is found by its name, whichever steps were
saved. The rename is the only moment that counts: a process may be killed, and the disk
may fill up, at any other moment, and all earlier checkpoints stay as they were. Before a
folder is removed, it gets the suffix .tmp back, so that half of one is never taken for whole.

Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ropewalk.argument_kinds import check_number
from ropewalk.atomic_files import StagedFolder, remove_folder, remove_left
from ropewalk.errors import CheckpointCorrupt
from ropewalk.training.manifests import MANIFEST, Manifest, PartRecord, read_manifest, write_manifest
from ropewalk.trusted_files import make_folder

_SAVE = re.compile(r"(\d+)-step-\d+")
_WRITING = ".tmp"
_PART_FILE = re.compile(r"(weights|state)-.+\.(safetensors|json)")
"""The names of the files of parts, see `manifests.py`. In a folder that others may write to, another one of this user
could have been given the name of a checkpoint, for this module to remove it."""

_logger = logging.getLogger(__name__)


class Writing:
    """A checkpoint that is being written; made by `begin`. Leaving `with` abandons it unless it was committed."""

    def __init__(self, staged: StagedFolder, step: int, keep: int | None) -> None:
        self.path = staged.staged
        """Where writers put their parts."""
        self._staged = staged
        self._step = step
        self._keep = keep
        self._open = True

    def __enter__(self) -> Writing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abandon()

    def commit(self, parts: Sequence[PartRecord], facts: Mapping[str, Any]) -> Path:
        """Make the written files the newest checkpoint, and remove the oldest beyond `keep`.

        If that fails, the checkpoint is abandoned.

        Args:
            parts: the parts of all writers, which have finished.
            facts: facts about the run as a whole, plain data (JSON).

        Returns:
            The folder of the checkpoint.

        Raises:
            OSError: the checkpoint cannot be written, or a part is missing; earlier checkpoints are still good.
            ValueError: two parts hold the same name.
            RuntimeError: the checkpoint was committed or abandoned before.
        """
        if not self._open:
            raise RuntimeError(f"{self.path} was committed or abandoned already; begin another")
        try:
            saved = self._commit(parts, facts)
        except BaseException as error:
            error.add_note(f"The checkpoint of step {self._step} was not saved; those before it are unchanged.")
            self.abandon()  # a full disk needs the space
            raise
        self.abandon()
        _remove_oldest(saved.parent, self._keep)
        return saved

    def abandon(self) -> None:
        """Remove the written files; may be called twice, and does nothing after a commit."""
        self._open = False
        self._staged.close()

    def _commit(self, parts: Sequence[PartRecord], facts: Mapping[str, Any]) -> Path:
        _check_disjoint(parts)
        for part in parts:
            for file, record in part.files.items():
                _check_there(self.path / file, record.size_bytes, part.name)
        write_manifest(self.path, Manifest(self._step, dict(facts), tuple(parts)))
        self._staged.commit()
        return self._staged.path


def begin(folder: Path | str, step: int, *, keep: int | None = 2) -> Writing:
    """Begin a checkpoint; removes the remains of writers that were killed.

    Args:
        folder: created if it is missing, for this user alone: anyone who may enter it may read checkpoints. All writers
            reach it by this path.
        step: the number of training steps that the checkpoint holds.
        keep: the number of checkpoints that remain after it is committed, itself included; None: all.

    Returns:
        The checkpoint, to be committed or abandoned.

    Raises:
        OSError: the folder cannot be made.
        ValueError: `keep` or `step` is out of range.
        TypeError: one of them is no whole number.
    """
    check_number("keep", keep, int, "a number of checkpoints", least=1)
    check_number("step", step, int, "a number of steps", least=0, required=True)
    folder = Path(folder).absolute()  # writers may have another working directory
    make_folder(folder)
    _remove_left(folder)
    number = max((_number(path) for path in folder.iterdir() if _is_save(path.name.removesuffix(_WRITING))), default=0)
    while True:
        number += 1
        path = folder / f"{number:04}-step-{step}"
        with contextlib.suppress(FileExistsError):  # another writer took the number just now
            # Anyone who may enter the folder may read its files; a folder that was made here is for this user alone.
            mode = 0o700 | folder.stat().st_mode & 0o055
            return Writing(StagedFolder(path.with_name(path.name + _WRITING), path, mode=mode), step, keep)


def saves(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    found = (path for path in folder.iterdir() if _is_save(path.name) and path.is_dir())
    return sorted(found, key=_number, reverse=True)


def read(path: Path | str) -> tuple[Path, Manifest]:
    """Return a checkpoint and its manifest: the newest in the folder `path`, or `path` itself if it is one.

    Args:
        path: a folder of checkpoints, or one checkpoint.

    Raises:
        FileNotFoundError: there is no checkpoint.
        NotADirectoryError: `path` is a file, such as one of `torch.save`.
        CheckpointCorrupt: its manifest is damaged; lists the older checkpoints.
    """
    path = Path(path).absolute()
    if path.is_file():  # a FileNotFoundError here would be ignored by scripts that begin anew where there is none
        raise NotADirectoryError(
            f"{path} is a file, and a checkpoint is in a folder that `save` makes; weights that torch.save wrote are "
            "loaded into the model before a Trainer gets it: model.load_state_dict(torch.load(path))"
        )
    if (path / MANIFEST).exists() or _is_save(path.name):
        return path, read_manifest(path)
    if not path.is_dir():
        raise FileNotFoundError(f"there are no checkpoints in {path}: there is no such folder")
    while True:
        # A listing of a folder that changes meanwhile may miss both the removed checkpoint and the new one.
        found = saves(path) or saves(path)
        if not found:
            raise FileNotFoundError(
                f"there is no checkpoint in {path}; one is a folder such as 0001-step-20, and what ends in {_WRITING} "
                f"was never finished"
            )
        try:
            return found[0], read_manifest(found[0])
        except FileNotFoundError:
            if not found[0].is_dir():
                continue  # removed after it was found, because newer ones came
            raise
        except CheckpointCorrupt as error:
            if len(found) > 1:
                error.add_note(
                    f"Older ones are there, to be loaded by their own path: {', '.join(map(str, found[1:]))}"
                )
            raise


def _check_disjoint(parts: Sequence[PartRecord]) -> None:
    holder: dict[str, str] = {}
    for part in parts:
        for name in (*part.parameters, *part.buffers):
            if name in holder:
                raise ValueError(
                    f"the parts {holder[name]!r} and {part.name!r} both hold {name!r}; one must leave it out"
                )
            holder[name] = part.name


def _check_there(path: Path, size_bytes: int, part: str) -> None:
    try:
        found_bytes = path.stat().st_size
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is not there, though part {part!r} was written; all hosts must reach the folder of checkpoints by "
            f"this path, on a file system that they share"
        ) from None
    if found_bytes != size_bytes:
        raise OSError(f"{path} is {found_bytes} bytes long, and part {part!r} was written with {size_bytes}")


def _is_save(name: str) -> bool:
    return _SAVE.fullmatch(name) is not None


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _remove_oldest(folder: Path, keep: int | None) -> None:
    ours = [path for path in saves(folder) if path.lstat().st_uid == os.geteuid()]  # others' must not displace ours
    for path in ours[keep:] if keep else []:
        try:
            remove_folder(path, path.with_name(path.name + _WRITING), MANIFEST)
        except OSError as error:
            _logger.warning("checkpoint %s is not kept, and could not be removed: %s", path, error)


def _remove_left(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name.endswith(_WRITING) and _is_save(path.name.removesuffix(_WRITING)):
            remove_left(path, lambda name: name == MANIFEST or _PART_FILE.fullmatch(name) is not None)


__all__ = ["Writing", "begin", "read", "saves"]
