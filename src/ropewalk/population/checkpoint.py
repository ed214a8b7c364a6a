"""Checkpoints of a run: when they are written, which are kept, and which one a run goes on from."""

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
    """Where and how often a run is saved.

    Args:
        folder: made if it is not there, for this user alone; others must not be able to change what lies in it.
        every: generations between two; each is written whole before the older one goes.
        keep: how many; older ones serve when the newest is damaged.
        resume: whether to go on from the newest checkpoint in there; else those of the earlier run are removed when the
            first new one is whole.
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
        options: where, how often, and whether to go on from what lies there.
        on_failure: told why one could not be written; the run goes on, and tries again at the next.
    """

    def __init__(self, options: CheckpointConfig, on_failure: Callable[[str], None]) -> None:
        self._options = options
        self._resume = options.resume
        self._folder = Path(options.folder)
        self._on_failure = on_failure

    def newest(self) -> tuple[Path, Any] | None:
        """The newest whole checkpoint with its file; None if there is none, or none is wanted.

        Raises:
            CheckpointCorrupt: there are some, and all of them are damaged.
            FileNotTrusted: there are some, and other users could have written them.
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

    def save(self, generation: int, state: Callable[[], Any]) -> bool:
        """Write one if it is due; says whether one was written."""
        if generation % self._options.every:
            return False
        try:
            make_private_folder(self._folder)
            newest = self._folder / f"generation-{generation:09d}.state"
            write_state(newest, state())
        except OSError as error:
            self._on_failure(f"generation {generation} could not be saved in {self._folder}: {error}")
            return False
        old = (
            self._files()[: -self._options.keep] if self._resume else [each for each in self._files() if each != newest]
        )
        self._resume = True
        for path in old:
            with contextlib.suppress(OSError):
                path.unlink()
        return True

    def _files(self) -> list[Path]:
        """Ours alone: what another user puts there must not count as one that is kept."""
        return sorted(path for path in self._folder.glob(_PATTERN) if path.lstat().st_uid == os.geteuid())
