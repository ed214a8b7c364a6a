"""Checkpoints of an experiment that outlive its run: a folder with the newest and the one before it.

They are written by a forked child, while training goes on, and read only if nobody else can have written them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from ropewalk.program import checkpoints
from ropewalk.program.forked_work import ForkedWork, ForkedWorkFailed
from ropewalk.rl.variables import Variables
from ropewalk.tracking.current import current_run
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
        rank: rank of the learner whose checkpoints they are; those of several lie in one folder.
        experiment: what is trained, in words; a checkpoint of another experiment is told.
        clock: returns the time in seconds; tests give their own.
    """

    def __init__(
        self,
        folder: Path | str | None,
        every_s: float,
        experiment: str,
        rank: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._experiment = experiment
        self._every_s, self._rank, self._clock = every_s, rank, clock
        self._saved = clock()
        self._saved_experiment = ""
        """In words, the one whose state was loaded."""
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
        if restored is None:
            return None
        self._saved_experiment = restored.state["experiment"]
        if self._saved_experiment != self._experiment:
            logger.warning(
                "the checkpoint in %s is of another experiment: %s. It goes on from there; take another folder to "
                "start over",
                self._folder,
                _changes(self._saved_experiment, self._experiment),
            )
        return restored.state

    @contextlib.contextmanager
    def fitting(self) -> Generator[None]:
        """While the loaded state is taken over: explain an error of parts that are of another agent or environment.

        Raises:
            ValueError: the state does not fit the experiment; says what both are.
        """
        try:
            yield
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"the checkpoint in {self._folder} does not fit this experiment ({type(error).__name__}: {error}). It "
                f"is of\n  {self._saved_experiment}\nand this one is\n  {self._experiment}\nTake another folder to "
                "start over, or the settings of the checkpoint to go on"
            ) from error

    def save_if_due(self, state: Callable[[], dict[str, Any]]) -> bool:
        """Begin to save, in a child, what `state` returns now, if it is time; returns whether it did."""
        if self._folder is None or self._clock() - self._saved < self._every_s:
            return False
        if self._writing is not None and not self._writing.has_ended:
            return False  # a slow disk delays checkpoints, and not training
        self.finish()
        self._saved = self._clock()
        folder, rank, taken = self._folder, self._rank, self._noted(state)

        def write(alive: Callable[[], None]) -> bytes:
            # Once its learner is gone, a successor may have read the checkpoint before, and gone on from there.
            return str(checkpoints.save(folder, _NAME, rank, dumps(taken), {}, before_keeping=alive)).encode()

        self._writing = ForkedWork(write)
        return True

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save what `state` returns, before this returns.

        Raises:
            OSError: it cannot be written; the checkpoints before it are as they were.
        """
        if self._folder is not None:
            self.finish()
            checkpoints.save(self._folder, _NAME, self._rank, dumps(self._noted(state)), {})
            self._saved = self._clock()

    def _noted(self, state: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return {**state(), "experiment": self._experiment}

    def finish(self) -> None:
        """Wait for a checkpoint that is being written; a failure is logged, and training goes on."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.wait(_SILENT_S)
            except ForkedWorkFailed as error:
                logger.warning("a checkpoint was not saved in %s: %s; training goes on", self._folder, error)


def _changes(saved: str, now: str) -> str:
    """Return in which of their words two experiments differ; both have dozens of settings that are the same."""
    before, after = saved.split(), now.split()
    codes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return "; ".join(
        f"it has {' '.join(before[start:end]).rstrip(',') or 'nothing'} where this one has "
        f"{' '.join(after[own_start:own_end]).rstrip(',') or 'nothing'}"
        for tag, start, end, own_start, own_end in codes
        if tag != "equal"
    )


def check_kind(state: Mapping[str, Any], key: str, folder: Path | str | None) -> None:
    """Refuse the state of a run in another mode.

    Args:
        state: the state that was loaded.
        key: the key that states of this mode have: "rounds" in lock-step, "replay" in an asynchronous run.
        folder: folder of the checkpoint, for the message.

    Raises:
        ValueError: it is of the other mode.
    """
    if key not in state:
        this, other = ("lock-step", "an asynchronous run") if key == "rounds" else ("an asynchronous run", "lock-step")
        raise ValueError(
            f"the checkpoint in {folder} is of {other}, and this is {this}, which keeps other things; say the other "
            "mode, or take another folder"
        )


def check_rounds(state: Mapping[str, Any], groups: int, lag: int, folder: Path | str | None) -> list[Variables]:
    """Refuse the state of a run in lock-step that this one cannot go on from.

    Args:
        state: the state that was loaded.
        groups: number of groups of this run.
        lag: lag of this run.
        folder: folder of the checkpoint, for the message.

    Returns:
        The weights of the last lag + 1 rounds, the newest last; those of round 0 stand for earlier ones.

    Raises:
        ValueError: it is of an asynchronous run, or of another number of groups, or of another lag.
    """
    check_kind(state, "rounds", folder)
    saved = len(state["histories"])
    if saved != groups:
        raise ValueError(
            f"the checkpoint in {folder} has {saved} group(s) of environments, and this run has {groups}; say "
            f"groups={saved} in the experiment, which may have fewer actors, or take another folder"
        )
    published = {variables.version: variables for variables in state["published"]}
    newest, oldest = max(published), min(published)
    if newest - oldest != min(lag, newest):
        raise ValueError(
            f"the checkpoint in {folder} is of a run with lag={newest - oldest}, and this one has lag={lag}; say "
            f"lag={newest - oldest}, or take another folder"
        )
    return [published[max(0, version)] for version in range(newest - lag, newest + 1)]


def tell_beginning(steps: int, total_steps: int, folder: Path | str | None) -> None:
    """Say from where the experiment goes on, or that nothing is left to do.

    Args:
        steps: number of steps before the checkpoint.
        total_steps: number of steps of the whole experiment.
        folder: folder of the checkpoint.
    """
    if (run := current_run()) is not None:
        run.resumed_from(steps)
    if steps < total_steps:
        logger.warning(
            "the experiment goes on from step %s of %s, from the checkpoint in %s",
            f"{steps:,}",
            f"{total_steps:,}",
            folder,
        )
        return
    logger.warning(
        "the checkpoint in %s has done %s of %s steps: nothing is left to do. Give the experiment more steps to go "
        "on, or another folder to start over",
        folder,
        f"{steps:,}",
        f"{total_steps:,}",
    )


def tell_interruption(steps: int, total_steps: int, folder: Path | str | None) -> None:
    """Say that an experiment was interrupted after a last checkpoint, and how it goes on.

    Args:
        steps: number of steps so far.
        total_steps: number of steps of the whole experiment.
        folder: folder of the checkpoint; None: nothing was saved.
    """
    if folder is not None:
        logger.warning(
            "the experiment was interrupted after %s of %s steps; it is saved in %s, and the same script goes on there",
            f"{steps:,}",
            f"{total_steps:,}",
            folder,
        )


__all__ = ["ExperimentCheckpoints", "check_kind", "check_rounds", "tell_beginning", "tell_interruption"]
