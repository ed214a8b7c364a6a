"""`RunSink`: a place to which one run is copied beside its store.

A sink is called by one thread, which waits for it without disturbing training. If it raises an `OSError` or an error of
its network, what it was given is kept in memory and given to it again; so it may see a record twice.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.tracking.records import RunRecord


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """The run that a sink copies.

    Attributes:
        id: its id.
        project: its project.
        name: its name.
        folder: its folder.
        config: its configuration, as JSON can represent it.
        attempt: 1 if it begins; larger if it goes on.
    """

    id: str
    project: str
    name: str
    folder: Path
    config: Mapping[str, Any]
    attempt: int


class RunSink(ABC):
    """Copies one run. A constructor takes its options, and raises `ModuleNotFoundError` if a package is missing."""

    @abstractmethod
    def begin(self, run: CopiedRun) -> None:
        """Begin, before anything else; called once.

        Raises:
            Exception: it cannot, which ends `track`: a wrong address is to be found out before the training begins.
        """

    @abstractmethod
    def apply(self, batch: Sequence[RunRecord]) -> None:
        """Take records, in order. It takes those that it has a place for.

        Raises:
            Exception: it cannot take them at the moment.
        """

    @abstractmethod
    def close(self) -> None:
        """End; may be called twice, and without `begin`."""


def optional_module(name: str, package: str, sink: str) -> Any:
    """Import a module that a sink needs.

    Args:
        name: name of the module.
        package: name of the package that has it.
        sink: name of the sink.

    Raises:
        ModuleNotFoundError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the sink {sink!r} needs {error.name}, which is not installed: pip install {package}", name=error.name
        ) from error


__all__ = ["CopiedRun", "RunSink", "optional_module"]
