"""The decisions of an asynchronous run, by which it can be repeated in one process.

What an asynchronous run computes depends on nothing but the seed and the order in which a few things happened at the
learner. Each is a line of the log, a JSON array:

    ["begin", experiment, groups]   the experiment, for people, and to refuse a log of another one; number of actors
    ["insert", run id, n, version]  block n of an actor's life, collected with these weights, came into replay
    ["sample", items]               a batch was drawn; the update with it follows
    ["priorities"]                  the priorities of its items were changed
    ["publish", version, steps]     the weights became this version, after this number of environment steps
"""

from __future__ import annotations

import json
import os
from io import BufferedWriter
from pathlib import Path
from typing import Any, TypeAlias

from ropewalk.rl.replay.insertion import Insertion
from ropewalk.trusted_files import make_folder

Event: TypeAlias = "list[Any]"


class DecisionLog:
    """Writes a log.

    Args:
        path: of the file; one that is there is continued by `go_back`, and replaced otherwise.
        experiment: what is trained, in words.
        groups: of environments.
    """

    def __init__(self, path: Path | str, experiment: str, groups: int) -> None:
        make_folder(Path(path).parent)
        path = Path(path)
        self._before = path.read_bytes() if path.exists() else b""
        self._file: BufferedWriter = path.open("wb")
        self._length = 0
        self._write(["begin", experiment, groups])

    def insert(self, insertion: Insertion) -> None:
        """Note an insertion."""
        self._write(["insert", insertion.run_id, insertion.sequence, insertion.version])

    def sample(self, num_items: int) -> None:
        """Note that a batch was drawn."""
        self._write(["sample", num_items])

    def update_priorities(self) -> None:
        """Note that the priorities of the last batch were changed."""
        self._write(["priorities"])

    def publish(self, version: int, steps: int) -> None:
        """Note new weights."""
        self._write(["publish", version, steps])

    def position(self) -> int:
        """Return the length of the log in bytes, after writing out what is buffered."""
        if not self._file.closed:
            self._file.flush()
            self._length = self._file.tell()
        return self._length

    def go_back(self, position: int) -> None:
        """Begin with the first `position` bytes of the earlier log: what came after them was lost, and happens anew."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._before[:position])
        self._before = b""

    def close(self) -> None:
        """Write out what is buffered; may be called twice."""
        if not self._file.closed:
            self.position()
            os.fsync(self._file.fileno())
            self._file.close()

    def _write(self, event: Event) -> None:
        self._file.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")


def read_decisions(path: Path | str, experiment: str) -> tuple[int, list[Event]]:
    """Return the number of groups and the events of a log, in order.

    Args:
        path: of the log.
        experiment: the experiment that is to be repeated, in the same words.

    Raises:
        ValueError: the log is of another experiment, or damaged.
    """
    events: list[Event] = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                event: Event = json.loads(line)
                events.append([str(event[0]), *event[1:]])
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(f"{path} is no log of decisions: line {number} is {line[:80]!r}") from error
    if not events or events[0][0] != "begin":
        raise ValueError(f"{path} is no log of decisions: it does not say what it begins with")
    _, recorded, groups = events[0]
    if recorded != experiment:
        raise ValueError(f"{path} is the log of another experiment:\n  {recorded}\nand this one is\n  {experiment}")
    return int(groups), events[1:]


__all__ = ["DecisionLog", "Event", "read_decisions"]
