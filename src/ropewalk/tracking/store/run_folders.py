"""Folders of runs: where they are, and what of them may be deleted with a run.

The folder of a run comes from its records, so it may be anything: the user's home, or a link to it. Only a real folder
that is named after the run belongs to it alone, and only if the id is one that was made at random: a run with the id
"thesis" may be a trap. In a database of several users, so may one with the hexadecimal name of any other folder of this
user, such as a snapshot of a model: there, only what is in this user's own folder of runs is removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

from ropewalk.atomic_files import remove_folder
from ropewalk.errors import StoreError
from ropewalk.escaping import escaped

_log = logging.getLogger(__name__)
_MADE_ID = re.compile(r"[0-9a-f]{10,}([.-][0-9a-z]+)*")
"""An id of random hexadecimal digits; those of trials have a number after it."""


def folder_now(recorded: str, run: str, beside: Path | None) -> str:
    """Return where the folder of a run is: a store that was copied, or is mounted elsewhere, has it beside it.

    Otherwise a copy would show files that are not there, and to delete one of its runs would delete the original's.

    Args:
        recorded: where it was when the run began; empty if it has none.
        run: id of the run.
        beside: the folder of runs beside the store; None if the store is no file.
    """
    if beside is None or not recorded or os.path.dirname(recorded) == str(beside) or not _MADE_ID.fullmatch(run):
        return recorded
    return str(beside / run) if _is_real_folder(beside / run) else recorded


class RemovedFolder:
    """What the deletion of a run removes of its folder.

    Args:
        run: id of the run.
        folder: its folder; empty if it has none.
        files: paths of its artifacts and checkpoints.
        within: the folder of runs in which it has to be, if others may have written where it is; None: wherever it is.
    """

    def __init__(self, run: str, folder: str, files: Collection[str], within: Path | None = None) -> None:
        self._run = run
        self._folder = Path(folder) if folder else None
        self._files = files
        self._within = within

    def remove(self, where: str) -> None:
        """Remove it; what is not there any more is not an error.

        Args:
            where: the store, as messages name it.

        Raises:
            StoreError: something cannot be removed; names the path.
        """
        folder = self._folder
        if folder is None or not folder.is_absolute() or not _is_real_folder(folder):
            return
        if self._within and os.path.realpath(folder.parent) != os.path.realpath(self._within):
            _log.warning(
                "the folder of run %s is left where it is, because a database names it and it is not in the folder of "
                "runs %s; if it is of that run alone, remove it with: rm -r %s",
                escaped(self._run),
                self._within,
                escaped(shlex.quote(str(folder))),
            )
            return
        try:
            if folder.name == self._run and _MADE_ID.fullmatch(self._run):
                remove_folder(folder, folder.with_name(f".{folder.name}.deleted"))
                return
            for path in self._files:
                _remove_inside(folder, Path(path))
            with contextlib.suppress(OSError):  # it holds other things
                folder.rmdir()
        except OSError as error:
            raise StoreError(
                f"run {self._run} was deleted from the store {where}, but its folder was not, or not completely: "
                f"{error}; remove it with: rm -r {folder}",
                where=where,
            ) from error


def _is_real_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _remove_inside(folder: Path, path: Path) -> None:
    """Remove a file or folder that is somewhere inside a folder, without following links."""
    place = Path(os.path.normpath(folder / path))
    if place == folder or Path(os.path.realpath(place.parent)) / place.name != place or folder not in place.parents:
        return
    if _is_real_folder(place):
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
