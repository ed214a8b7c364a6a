"""Artifacts: files that are copied into the folder of a run, with their digests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import mimetypes
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ropewalk.atomic_files import StagedFile
from ropewalk.escaping import escaped
from ropewalk.tracking.checkpoints import shown_step
from ropewalk.tracking.records import ArtifactKept
from ropewalk.trusted_files import make_folder

_log = logging.getLogger(__name__)
_CHUNK_BYTES = 1 << 20
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK
_told: list[str] = []
"""The file of the record for which the user was told that it is not as it was recorded."""
Failed = Callable[[str, OSError], None]
"""Called with words for a file that could not be kept, and the error."""


def keep_files(
    path: Path, name: str | None, folder: Path, *, step: float | None, copy: bool, failed: Failed
) -> Iterator[ArtifactKept]:
    """Copy a file, or all files of a folder, and yield a record of each.

    Args:
        path: the file or folder. Links in a folder are not followed.
        name: its name in the run; None: the last part of the path.
        folder: where copies are put.
        step: the step that it belongs to, if to any.
        copy: False makes no copy; the records have the paths of the files as they are.
        failed: called for each file that could not be written.

    Raises:
        FileNotFoundError, PermissionError: there is no such file, or it cannot be read.
        ValueError: the name leads out of the folder.
    """
    name = _checked(name or path.resolve().name)
    if not path.is_dir():
        yield from _keep(path, name, folder, step, copy, failed)
        return
    for parent, folders, files in os.walk(path):
        folders.sort()
        for file in sorted(files):
            source = Path(parent, file)
            if source.is_file() and not source.is_symlink():
                yield from _keep(source, f"{name}/{source.relative_to(path).as_posix()}", folder, step, copy, failed)


def keep_file(
    content: bytes, name: str, ending: str, folder: Path, *, step: float | None, failed: Failed
) -> ArtifactKept | None:
    """Write an image into the folder of a run, and return its record; None if it could not be written.

    Args:
        content: the content.
        name: its name in the run.
        ending: the ending of the file, such as ".png".
        folder: the folder.
        step: the step that it belongs to, if to any.
        failed: called if it could not be written.

    Raises:
        ValueError: the name leads out of the folder.
    """
    at = "" if step is None else f"-{shown_step(step)}"
    target = folder / f"{_checked(name)}{at}{ending}"
    try:
        make_folder(target.parent)
        with StagedFile(target, durable=False) as staged:
            staged.file.write(content)
            staged.commit()
    except OSError as error:
        failed(f"image {name}", error)
        return None
    media_type = mimetypes.types_map.get(ending, "")
    digest = hashlib.sha256(content).hexdigest()
    return ArtifactKept(name, str(target), "image", len(content), digest, time.time(), step, media_type)


def _keep(
    path: Path, name: str, folder: Path, step: float | None, copy: bool, failed: Failed
) -> Iterator[ArtifactKept]:
    target = folder / name
    digest, size_bytes = hashlib.sha256(), 0
    with open(path, "rb") as source:
        try:
            if copy:
                make_folder(target.parent)
                with StagedFile(target, durable=False) as staged:
                    while chunk := source.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        size_bytes += staged.file.write(chunk)
                    staged.commit()
            else:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    size_bytes += len(chunk)
        except OSError as error:
            failed(f"artifact {name}", error)
            return
    where = str(target if copy else path.resolve())
    media_type = mimetypes.guess_type(name)[0] or ""
    yield ArtifactKept(name, where, "file", size_bytes, digest.hexdigest(), time.time(), step, media_type)


def is_as_recorded(record: ArtifactKept) -> bool:
    """Return whether the file of a record is on this host, with the content that was recorded; tells if one is not.

    The record comes from the process that worked on the run, perhaps on another host, and names a path here. Only who
    has read a file knows its digest, so no record has a file of this host copied elsewhere that its writer cannot read.
    Links are not followed, and no pipe is waited for.
    """
    with contextlib.suppress(OSError, ValueError), open(record.path, "rb", opener=_open_file) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() == record.sha256:
            return True
    if not _told:
        _told.append(record.path)
        _log.warning(
            "the artifact %s is not copied to other places: %s is not on this host, or not as it was recorded",
            escaped(record.name), escaped(record.path),
        )  # fmt: skip
    return False


def _open_file(path: str, flags: int) -> int:
    """Open a file, and nothing else."""
    descriptor = os.open(path, flags | _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


def _checked(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is not a name for a file in a run: it is relative, and has no '..'")
    return name


__all__ = ["Failed", "is_as_recorded", "keep_file", "keep_files"]
