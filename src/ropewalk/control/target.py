"""`ControlTarget`: what a `ControlServer` serves, with the defaults of a target that can only be looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ropewalk.control.view import Kind, Observable


class ControlTarget(Observable, Protocol):
    """Something that runs, as `ControlServer` sees it, which calls it from several threads at once.

    A target is a subclass that has the attributes, and overrides `view` and the methods of what it can do.

    Attributes:
        kind: as in `View`.
        id: as in `View`; `new_id` makes one.
        tells_deaths: whether it logs the deaths of its processes itself, with what they mean for it.
    """

    kind: Kind
    id: str
    tells_deaths: bool = False

    @property
    def name(self) -> str:
        """As in `View`."""
        ...

    def stop(self, grace_s: float | None) -> None:
        """Stop it, and return when it has ended; may be called twice.

        Args:
            grace_s: seconds between the request to end and the kill; None for the target's own default.

        Raises:
            ValueError: it cannot be stopped from here.
        """
        raise ValueError(f"{self.kind} {self.name} cannot be stopped from here")

    def act(self, action: str, process: str) -> str:
        """Carry out an action.

        Args:
            action: of `View.actions`, or of `View.process_actions`.
            process: the name of the process; "" for the target as a whole.

        Returns:
            What it has led to, in words.

        Raises:
            ValueError: there is no such action or process, or it cannot be carried out now; the message says why.
        """
        raise ValueError(f"{self.kind} {self.name} has no action {action!r}")

    def log_files(self) -> Mapping[str, Path]:
        """The output file of each process, by name; empty if output is not kept in files."""
        return {}

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        """The Python stacks of a process, of all of a group, or of all, by name of the process.

        A process that does not answer in time has a sentence that says so in place of its stack.
        """
        return {}


def new_id() -> str:
    """Return an id for a target that no other has."""
    return os.urandom(6).hex()
