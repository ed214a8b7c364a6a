"""The decisions of an asynchronous run, by which it can be repeated in one process.

What an asynchronous run computes depends on nothing but the seed and the order in which a few things happened at the
learner. Each is a line of the log, a JSON array:

    ["begin", experiment, groups]   the experiment, for people, and to refuse a log of another one; number of actors
    ["insert", run id, n, version]  block n of an actor's life, collected with these weights, came into replay
    ["stale", run id, n, version]   the same of a block that was too old: its rows came, and no item
    ["sample", items]               a batch was drawn; the update with it follows
    ["priorities"]                  the priorities of its items were changed
    ["publish", version, steps]     the weights became this version, after this number of environment steps
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Generator
from io import BufferedRandom, BufferedWriter
from pathlib import Path
from typing import Any, TypeAlias

from ropewalk.rl.replay.insertion import Insertion
from ropewalk.trusted_files import make_folder

Event: TypeAlias = "list[Any]"

logger = logging.getLogger(__name__)


class DecisionLog:
    """Writes a log. Nothing is written before the first block has come, so that `go_back` finds the earlier log whole.

    If the file cannot be written, that is logged, and training goes on without a record.

    Args:
        path: path of the file; one that is there is continued by `go_back`, and replaced otherwise.
        experiment: what is trained, in words.
        groups: number of groups of environments.
    """

    def __init__(self, path: Path | str, experiment: str, groups: int) -> None:
        self._path = Path(path)
        make_folder(self._path.parent)
        self._file: BufferedWriter | BufferedRandom | None = None
        self._kept = 0
        """Bytes of the earlier log that this one continues."""
        self._pending: list[bytes] = []
        """Lines that come before the first block."""
        self._length = 0
        self._is_lost = self._is_closed = False
        self._write(["begin", experiment, groups])

    def insert(self, insertion: Insertion, *, stale: bool = False) -> None:
        """Note an insertion."""
        self._begin()
        self._write(["stale" if stale else "insert", insertion.run_id, insertion.sequence, insertion.version])

    def sample(self, num_items: int) -> None:
        """Note that a batch was drawn."""
        self._begin()
        self._write(["sample", num_items])

    def update_priorities(self) -> None:
        """Note that the priorities of the last batch were changed."""
        self._write(["priorities"])

    def publish(self, version: int, steps: int) -> None:
        """Note new weights."""
        self._write(["publish", version, steps])

    def position(self) -> int:
        """Return the length of the log in bytes, after writing out what is buffered; -1 if it could not be written."""
        self._begin()
        with self._losing():
            if self._file:
                self._file.flush()
                self._length = self._file.tell()
        return -1 if self._is_lost else self._length

    def go_back(self, position: int) -> None:
        """Continue the first `position` bytes of the earlier log: what came after them was lost, and happens anew.

        Raises:
            ValueError: the earlier log is not there.
        """
        if position < 0:
            self._lose("it was not written to its end before the checkpoint")
            return
        size = self._path.stat().st_size if self._path.exists() else 0
        if not 0 < position <= size:
            raise ValueError(
                f"{self._path} has {size} bytes, and a run that goes on from this checkpoint needs the first "
                f"{position} of its record (0: it had none); bring that file back, leave out record, or take another "
                "checkpoint"
            )
        self._kept = position
        self._pending.clear()

    def close(self) -> None:
        """Write out what is buffered; may be called twice."""
        self.position()
        with self._losing():
            if self._file:
                os.fsync(self._file.fileno())
                self._file.close()
        self._file = None
        self._is_closed = True

    def _begin(self) -> None:
        """Open the file, and write what came before the first block."""
        if self._file or self._is_lost or self._is_closed:
            return
        with self._losing():
            self._file = self._path.open("r+b" if self._path.exists() else "w+b")
            self._file.truncate(self._kept)
            self._file.seek(self._kept)
            self._file.writelines(self._pending)
        self._pending.clear()

    def _write(self, event: Event) -> None:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        if self._is_lost or self._is_closed:
            return
        if not self._file:
            self._pending.append(line)
            return
        with self._losing():
            self._file.write(line)

    @contextlib.contextmanager
    def _losing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self._lose(str(error))

    def _lose(self, why: str) -> None:
        self._is_lost = True
        file, self._file = self._file, None
        if file:
            with contextlib.suppress(OSError):
                file.close()
        logger.error("the decisions of this run are not recorded in %s: %s; training goes on", self._path, why)


def read_decisions(path: Path | str, experiment: str) -> tuple[int, list[Event]]:
    """Return the number of groups and the events of a log, in order.

    A last line without its end, as a run leaves it that was killed, is left out.

    Args:
        path: path of the log.
        experiment: the experiment that is to be repeated, in the same words.

    Raises:
        ValueError: the log is of another experiment, or damaged.
    """
    events: list[Event] = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                logger.warning("%s ends in the middle of line %d, which is left out: its run was killed", path, number)
                break
            try:
                event: Event = json.loads(line)
                events.append([str(event[0]), *event[1:]])
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(f"{path} is not a log of decisions: line {number} is {line[:80]!r}") from error
    if not events or events[0][0] != "begin":
        raise ValueError(f"{path} is not a log of decisions: it does not say what it begins with")
    _, recorded, groups = events[0]
    if recorded != experiment:
        raise ValueError(f"{path} is the log of another experiment:\n  {recorded}\nand this one is\n  {experiment}")
    return int(groups), events[1:]


__all__ = ["DecisionLog", "Event", "read_decisions"]
