"""Checkpoints of a run: when they are written, which of them are kept, and from which one a run continues."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import CheckpointCorrupt, FileNotTrusted
from ropewalk.population.state_file import read_state, write_state
from ropewalk.trusted_files import make_private_folder

logger = logging.getLogger(__name__)

_PATTERN = "generation-*.state"


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Where and in which generations a run is saved.

    Args:
        folder: the folder of the checkpoints, created for this user alone if missing; other users must not be able to
            change files in it.
        every: number of generations between two checkpoints; each is complete before an older one is removed.
        keep: number of checkpoints to keep; older ones are used if the newest is damaged.
        resume: whether to continue from the newest checkpoint in the folder; if not, the checkpoints of the earlier run
            are removed when the first new one is complete.
    """

    folder: str | Path
    every: int = 1
    keep: int = 2
    resume: bool = True

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise ValueError(f"every and keep of a checkpoint are at least 1, not {self.every} and {self.keep}")


class Checkpoints:
    """The checkpoints of one run.

    Args:
        options: where and how often to save, and whether to continue from existing checkpoints.
        on_failure: called with the reason if a checkpoint could not be written; the run continues, and tries again when
            the next one is due.
    """

    def __init__(self, options: CheckpointConfig, on_failure: Callable[[str], None]) -> None:
        self._options = options
        self._resume = options.resume
        self._folder = Path(options.folder)
        self._on_failure = on_failure

    def newest(self) -> tuple[Path, Any] | None:
        """Return the newest complete checkpoint as (path, state); None if there is none, or the run is not resumed.

        Raises:
            CheckpointCorrupt: there are checkpoints, and all of them are damaged.
            FileNotTrusted: there are checkpoints, and other users could have written them.
        """
        problem: CheckpointCorrupt | FileNotTrusted | None = None
        for path in sorted(self._folder.glob(_PATTERN), reverse=True) if self._resume else ():
            try:
                return path, read_state(path)
            except (CheckpointCorrupt, FileNotTrusted) as error:
                logger.warning("%s; an older checkpoint is used if there is one", error)
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def save(self, generation: int, state: Callable[[], Any]) -> Path | None:
        """Write a checkpoint if one is due; returns its path if one was written."""
        if generation % self._options.every:
            return None
        try:
            make_private_folder(self._folder)
            newest = self._folder / f"generation-{generation:09d}.state"
            write_state(newest, state())
        except OSError as error:
            self._on_failure(f"generation {generation} could not be saved in {self._folder}: {error}")
            return None
        old = (
            self._files()[: -self._options.keep] if self._resume else [each for each in self._files() if each != newest]
        )
        self._resume = True
        for path in old:
            with contextlib.suppress(OSError):
                path.unlink()
        return newest

    def _files(self) -> list[Path]:
        """Return the checkpoints of this user only: files of other users must not count as kept checkpoints."""
        return sorted(path for path in self._folder.glob(_PATTERN) if path.lstat().st_uid == os.geteuid())
