"""Checkpoints of a run: a folder for each step, complete or absent, verified when it is read.

    checkpoints/step-40/state.safetensors    tensors and arrays, which every reader of safetensors can read
                        checkpoint.json      its digest; the digest of the tensors; all other values

Nothing in a checkpoint is a pickle. The checkpoints of a trainer, which many hosts write in parallel, have another
format: `training/checkpoint_files.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ropewalk.atomic_files import StagedFolder, open_new_file, remove_folder, remove_left, write_new_file
from ropewalk.errors import CheckpointCorrupt
from ropewalk.quantities import listed
from ropewalk.sealed_json import BrokenSeal, sealed, unsealed
from ropewalk.state_container import damaged
from ropewalk.tensor_header import ITEM_BYTES, lay_out
from ropewalk.tracking.state_tree import MalformedTree, TensorBytes, TreeEncoder, decode_tree
from ropewalk.trusted_files import make_folder, open_own

_log = logging.getLogger(__name__)
_TENSORS, _MANIFEST = "state.safetensors", "checkpoint.json"
_PIN = "pinned"
"""A file beside the tensors of a checkpoint that is kept whatever the policy says."""
_FOLDER = re.compile(r"step-(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_MOST_MANIFEST_BYTES = 1 << 30


# --- which checkpoints are written and kept ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """Which calls of `run.checkpoint` write a checkpoint, and which checkpoints are kept.

    A pause always writes one, and so does the last step.

    Attributes:
        every: a checkpoint is written at each step that is a multiple of it.
        keep: number of newest checkpoints that are kept; None keeps all.
        best: name of a metric, with its group: "accuracy", "validation/loss"; the checkpoint with its best value is
            kept too. None: only the newest are kept.
        mode: "max" if larger values of that metric are better, "min" if smaller ones are.
    """

    every: int = 1
    keep: int | None = 1
    best: str | None = None
    mode: str = "max"

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(
                f"CheckpointPolicy.every is the number of steps between checkpoints, at least 1, not {self.every}"
            )
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"CheckpointPolicy.keep is at least 1, or None to keep all checkpoints, not {self.keep}")
        if self.mode not in ("max", "min"):
            raise ValueError(f'CheckpointPolicy.mode is "max" or "min", not {self.mode!r}')

    def is_due(self, step: float) -> bool:
        """Whether a checkpoint is written at this step, if nothing else asks for one."""
        return step % self.every == 0

    def to_remove(self, saved: Iterable[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Return the checkpoints that are no longer kept.

        Args:
            saved: all that there are.
        """
        newest_first = sorted(saved, key=lambda one: one.step, reverse=True)
        if self.keep is None:
            return []
        kept = newest_first[: self.keep]
        if (best := self.best_of(newest_first)) is not None:
            kept.append(best)
        return [one for one in newest_first if one not in kept]

    def best_of(self, saved: Iterable[SavedCheckpoint]) -> SavedCheckpoint | None:
        """Return the checkpoint with the best score, of equal ones the newest; None if none has a score."""
        sign = 1 if self.mode == "max" else -1
        scored = [
            (sign * one.score, one.step, one) for one in saved if one.score is not None and one.score == one.score
        ]
        return max(scored, key=lambda each: each[:2])[2] if scored and self.best is not None else None


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A complete checkpoint on the disk."""

    step: float
    path: Path
    size_bytes: int
    time: float
    """When it was written, in seconds since the epoch."""
    score: float | None = None
    """Value of the metric by which the best one is found."""
    report: tuple[float, dict[str, float]] | None = None
    """What a trial had reported last before it, if it is that of a trial: step, and values of its objectives by name.
    """


@dataclass(frozen=True, slots=True)
class Restored:
    """What `run.restore` found."""

    state: Any
    """The tree that was given to `run.checkpoint`: tensors are on the CPU."""
    step: float
    """The step after which it was written; an int if it is whole, so that `range` takes it."""
    path: Path
    """Its folder."""


# --- files ------------------------------------------------------------------------------------------------------------


class _Manifest(msgspec.Struct, frozen=True):
    step: float
    time: float
    score: float | None
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str
    tensors: dict[str, tuple[str, tuple[Annotated[int, msgspec.Meta(ge=0, le=1 << 62)], ...]]]
    tree: str
    """JSON. A text, so that integers of any size survive, such as states of random generators."""
    report: str = ""
    """JSON. A text, as its numbers may be NaN or infinite."""


class CheckpointFolder:
    """The checkpoints of one run, in one folder.

    Args:
        folder: the folder; it is created by the first checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def saved(self) -> list[SavedCheckpoint]:
        """Return all checkpoints whose manifest is whole, in the order of their steps; their tensors are not read."""
        found: list[SavedCheckpoint] = []
        for _, path in self._paths():
            with contextlib.suppress(CheckpointCorrupt, OSError):
                manifest = _read_manifest(path)
                found.append(_facts(path, manifest))
        return found

    def write(
        self,
        step: float,
        state: Any,
        score: float | None = None,
        report: tuple[float, Mapping[str, float]] | None = None,
    ) -> SavedCheckpoint:
        """Write a checkpoint; returns when it is on the disk. One of the same step is replaced.

        Args:
            step: the step after which the state was taken.
            state: a tree that `TreeEncoder.encode` accepts.
            score: value of the metric by which the best checkpoint is found.
            report: see `SavedCheckpoint`.

        Raises:
            TypeError: the state holds something that a checkpoint cannot hold; nothing was written.
            OSError: the checkpoint cannot be written; nothing of it is left, and earlier ones are as they were.
        """
        encoder = TreeEncoder()
        tree = json.dumps(encoder.encode(state, ""), allow_nan=False, separators=(",", ":"))
        path = self.folder / f"step-{shown_step(step)}"
        make_folder(self.folder)
        with _staged(path) as staged:
            digest = hashlib.sha256()
            size_bytes = write_new_file(staged.staged / _TENSORS, _parts(encoder.tensors, digest))
            specs = {name: (one.dtype, one.shape) for name, one in encoder.tensors.items()}
            told = "" if report is None else json.dumps([report[0], dict(report[1])])
            manifest = _Manifest(step, time.time(), score, size_bytes, digest.hexdigest(), specs, tree, told)
            write_new_file(staged.staged / _MANIFEST, [sealed(manifest)])
            if path.exists():  # written before, by this run: after a restore from an older one
                staged.commit_in_place_of(_staged_name(path, "old"))
            else:
                staged.commit()
        return _facts(path, manifest)

    def prune(self, policy: CheckpointPolicy, step: float) -> list[float]:
        """Remove the checkpoints that are no longer kept, after one was written.

        Args:
            policy: says which are kept.
            step: the step of the one that was written. Those of later steps are removed too: the run went back to an
                earlier step, and what came after it is being done again. A pinned one of an earlier step is kept.

        Returns:
            The steps of those that were removed.

        Raises:
            OSError: one cannot be removed.
        """
        gone = {one.step for one in policy.to_remove(one for one in self.saved() if one.step <= step)} - self.pinned()
        removed: list[float] = []
        for at, path in self._paths():
            if at > step or at in gone:
                remove_folder(path, _staged_name(path, "old"))
                removed.append(at)
        return removed

    def pin(self, step: float) -> None:
        """Keep a checkpoint whatever the policy says; only a return of the run to an earlier step removes it.

        Raises:
            LookupError: there is no checkpoint of `step`; lists the steps there are.
            OSError: its folder cannot be written.
        """
        with contextlib.suppress(FileExistsError):
            open_new_file(self._path(step) / _PIN).close()

    def unpin(self, step: float) -> None:
        """Leave it to the policy again whether a checkpoint is kept; raises as `pin`."""
        (self._path(step) / _PIN).unlink(missing_ok=True)

    def pinned(self) -> set[float]:
        """Return the steps of the checkpoints that are pinned."""
        return {step for step, path in self._paths() if os.path.lexists(path / _PIN)}

    def restore(self, step: float | None = None) -> Restored | None:
        """Read the newest checkpoint that is whole; a damaged one is skipped with a warning.

        Args:
            step: read the checkpoint of this step, and no other; None reads the newest.

        Returns:
            The checkpoint, or None if there is none.

        Raises:
            CheckpointCorrupt: there are checkpoints, and all of them are damaged; or the one of `step` is.
            LookupError: there is no checkpoint of `step`; lists the steps there are.
        """
        paths = self._paths()
        if step is not None:
            paths = [(at, path) for at, path in paths if at == step]
            if not paths:
                raise LookupError(_no_such_step(step, [at for at, _ in self._paths()], self.folder))
        first: CheckpointCorrupt | None = None
        for _, path in reversed(paths):
            try:
                return _read(path)
            except CheckpointCorrupt as error:
                first = first or error
                _log.warning("%s; it is skipped", error)
        if first is not None:
            raise first
        return None

    def _path(self, step: float) -> Path:
        paths = dict(self._paths())
        if step not in paths:
            raise LookupError(_no_such_step(step, list(paths), self.folder))
        return paths[step]

    def _paths(self) -> list[tuple[float, Path]]:
        with contextlib.suppress(FileNotFoundError):
            found = [
                (match[1], self.folder / name) for name in os.listdir(self.folder) if (match := _FOLDER.fullmatch(name))
            ]
            return sorted((float(step), path) for step, path in found)
        return []


def read_checkpoint(path: Path | str) -> Restored:
    """Read a checkpoint that `run.checkpoint` wrote, of any run, and verify each byte of it.

    Args:
        path: its folder, as in `RunStore.checkpoints`.

    Raises:
        CheckpointCorrupt: it is damaged.
        FileNotFoundError: there is no checkpoint; names those that are in that folder.
        OSError: it cannot be read.
    """
    path = Path(path)
    if not path.exists() or not ((path / _MANIFEST).exists() or _FOLDER.fullmatch(path.name)):
        folders = (CheckpointFolder(path), CheckpointFolder(path / "checkpoints"))
        there = [str(saved.path) for folder in folders for saved in folder.saved()]
        hint = f"; there are {listed(there, 3)}" if there else ""
        raise FileNotFoundError(f"{path} is not the folder of a checkpoint{hint}")
    return _read(path)


def _read(path: Path) -> Restored:
    manifest = _read_manifest(path)
    try:
        tensors = _read_tensors(path / _TENSORS, manifest)
        state = decode_tree(json.loads(manifest.tree), tensors.__getitem__)
    except FileNotFoundError:
        raise damaged(str(path), f"{_TENSORS} is missing") from None
    except (MalformedTree, LookupError, ValueError, TypeError, RecursionError) as error:
        raise damaged(str(path), f"it holds no saved state: {error}") from error
    step = int(manifest.step) if manifest.step.is_integer() else manifest.step
    return Restored(state, step, path)


def shown_step(step: float) -> str:
    """Format a step: whole numbers without a point."""
    return str(int(step)) if step == int(step) else repr(float(step))


def _facts(path: Path, manifest: _Manifest) -> SavedCheckpoint:
    size_bytes = manifest.size_bytes + len(manifest.tree)
    report = None
    if manifest.report:
        step, values = json.loads(manifest.report)
        report = float(step), {name: float(value) for name, value in values.items()}
    return SavedCheckpoint(manifest.step, path, size_bytes, manifest.time, manifest.score, report)


def _staged_name(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{ending}")


def _staged(path: Path) -> StagedFolder:
    for ending in ("tmp", "old"):
        remove_left(_staged_name(path, ending))  # of a process that was killed while it wrote or removed this step
    return StagedFolder(_staged_name(path, "tmp"), path)


def _parts(tensors: dict[str, TensorBytes], digest: Any) -> Iterable[bytes | memoryview | bytearray]:
    head, places, _ = lay_out({name: (one.dtype, one.shape) for name, one in tensors.items()})
    digest.update(head)
    yield head
    for name in places:
        content = tensors[name].content
        digest.update(content)
        yield content


def _read_manifest(path: Path) -> _Manifest:
    try:
        with open_own(path / _MANIFEST) as file:
            content = file.read(_MOST_MANIFEST_BYTES)
        manifest = unsealed(content, _Manifest)
    except FileNotFoundError:
        raise damaged(str(path), f"{_MANIFEST} is missing") from None
    except BrokenSeal as error:
        raise damaged(str(path / _MANIFEST), error) from None
    if strange := [dtype for dtype, _ in manifest.tensors.values() if dtype not in ITEM_BYTES]:
        raise damaged(str(path), f"it holds a tensor of the type {strange[0]!r:.80}")
    return manifest


def _read_tensors(path: Path, manifest: _Manifest) -> dict[str, TensorBytes]:
    head, places, size_bytes = lay_out(manifest.tensors)
    with open_own(path) as file:
        there = os.fstat(file.fileno()).st_size
        if not there == size_bytes == manifest.size_bytes:  # before any memory is taken for the tensors
            raise damaged(str(path), f"it has {there} bytes, and {manifest.size_bytes} were written")
        digest = hashlib.sha256(file.read(len(head)))
        found: dict[str, TensorBytes] = {}
        for name, (_, length) in places.items():
            content = bytearray(length)
            file.readinto(content)
            digest.update(content)
            dtype, shape = manifest.tensors[name]
            found[name] = TensorBytes(dtype, shape, content)
    if digest.hexdigest() != manifest.sha256:
        raise damaged(str(path), "its bytes are not those that were written (SHA-256 differs)")
    return found


def _no_such_step(step: float, known: Sequence[float], folder: Path) -> str:
    there = ", ".join(map(shown_step, known)) or "none"
    return f"{folder} has no checkpoint of step {shown_step(step)}; there are {there}"


__all__ = ["CheckpointFolder", "CheckpointPolicy", "Restored", "SavedCheckpoint", "read_checkpoint", "shown_step"]
