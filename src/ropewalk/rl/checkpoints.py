"""Checkpoints of an experiment that outlive its run: a folder with the newest and the one before it.

They are written by a forked child, while training goes on, and read only if nobody else can have written them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ropewalk.program import checkpoints
from ropewalk.program.forked_work import ForkedWork, ForkedWorkFailed
from ropewalk.transport.serialization import dumps

logger = logging.getLogger(__name__)

_NAME = "experiment"
_SILENT_S = 600.0
"""Seconds after which a child that writes is given up."""


class ExperimentCheckpoints:
    """Saves states at intervals.

    Args:
        folder: where; None: nothing is saved.
        every_s: seconds between checkpoints.
        rank: of the learner whose checkpoints they are; those of several lie in one folder.
        clock: for tests.
    """

    def __init__(
        self,
        folder: Path | str | None,
        every_s: float,
        rank: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._every_s, self._rank, self._clock = every_s, rank, clock
        self._saved = clock()
        self._writing: ForkedWork | None = None

    def load(self) -> dict[str, Any] | None:
        """Return the newest state; None if there is none.

        Raises:
            CheckpointCorrupt: all that there are are damaged.
            FileNotTrusted: another user could have written them.
        """
        if self._folder is None or not self._folder.exists():
            return None
        restored = checkpoints.load(self._folder, _NAME, self._rank)
        if restored is not None and restored.note:
            logger.warning("the experiment goes on from an older checkpoint: %s", restored.note)
        return restored and restored.state

    def save_if_due(self, state: Callable[[], dict[str, Any]]) -> bool:
        """Begin to save, in a child, what `state` returns now, if it is time; returns whether it did."""
        if self._folder is None or self._clock() - self._saved < self._every_s:
            return False
        self.finish()
        self._saved = self._clock()
        folder, rank, taken = self._folder, self._rank, state()

        def write(alive: Callable[[], None]) -> bytes:
            del alive
            return str(checkpoints.save(folder, _NAME, rank, dumps(taken), {})).encode()

        self._writing = ForkedWork(write)
        return True

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save what `state` returns, before this returns.

        Raises:
            OSError: it cannot be written; the checkpoints before it are as they were.
        """
        if self._folder is not None:
            self.finish()
            checkpoints.save(self._folder, _NAME, self._rank, dumps(state()), {})
            self._saved = self._clock()

    def finish(self) -> None:
        """Wait for a checkpoint that is being written; a failure is logged, and training goes on."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.wait(_SILENT_S)
            except ForkedWorkFailed as error:
                logger.warning("a checkpoint was not saved in %s: %s; training goes on", self._folder, error)


def check_kind(state: Mapping[str, Any], key: str, folder: Path | str | None) -> None:
    """Refuse the state of a run in another mode.

    Args:
        state: that was loaded.
        key: that states of this mode have: "rounds" in lock-step, "replay" in an asynchronous run.
        folder: for the message.

    Raises:
        ValueError: it is of the other mode.
    """
    if key not in state:
        this, other = ("lock-step", "an asynchronous run") if key == "rounds" else ("an asynchronous run", "lock-step")
        raise ValueError(
            f"the checkpoint in {folder} is of {other}, and this is {this}, which keeps other things; say the other "
            "mode, or take another folder"
        )


__all__ = ["ExperimentCheckpoints", "check_kind"]
