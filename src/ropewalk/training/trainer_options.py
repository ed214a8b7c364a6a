"""Options of a `Trainer`, grouped: snapshots for recovery, and the processes that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Literal

from ropewalk.engines.resources import Resources
from ropewalk.processes.session import Session
from ropewalk.training.further_copies import Where
from ropewalk.training.snapshot_pace import SnapshotPace


@dataclass(frozen=True, slots=True)
class Snapshots:
    """How often snapshots for recovery are taken, and where a further copy of the newest ones is kept.

    Example:
        >>> Snapshots(every=100, copy="launcher")
        Snapshots(every=100, copy='launcher')

    Args:
        every: steps between two snapshots, at least 1; "auto": as few as keep the cost within 3 % of the time.
        copy: where a copy of the newest snapshots is kept besides each process and its keeper, so that training
            survives any simultaneous deaths: "launcher", in the memory of this process; or a folder that all processes
            can reach. "auto": with the launcher, if the snapshots take 32 MiB or less, or if there is only one
            process. None: no further copy.

    Raises:
        ValueError: `every` is less than 1.
        TypeError: `copy` is neither a folder nor one of the words.
    """

    every: int | Literal["auto"] = "auto"
    copy: Literal["auto", "launcher"] | str | Path | None = "auto"

    def __post_init__(self) -> None:
        self.pace()
        check_kind("copy of snapshots", self.copy, str | Path, '"auto", "launcher", a folder, or None')

    def pace(self) -> SnapshotPace:
        """Return a counter of the steps of one training that says when a snapshot is due."""
        return SnapshotPace(self.every)

    @property
    def where(self) -> Where:
        """Return `copy`, with a folder as a path."""
        if self.copy is None or self.copy == "auto" or self.copy == "launcher":
            return self.copy
        return Path(self.copy)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Where the processes of a trainer run, and with which resources.

    Example:
        >>> ProcessOptions(engine="slurm", resources=Resources(cpus=4), name="unet").name
        'unet'

    Args:
        engine: where processes run; None: the setting.
        session: the session that the processes belong to; None: one that all programs and pools of this process share.
        resources: the resources that each process requests; None: the setting.
        environment: environment variables of the processes, by name; None: no extra ones.
        name: the name of the program; shown in `ropewalk ps`.

    Raises:
        TypeError: an option is of the wrong type.
    """

    engine: str | None = None
    session: Session | None = None
    resources: Resources | None = None
    environment: Mapping[str, str] | None = None
    name: str = "trainer"

    def __post_init__(self) -> None:
        check_kind("engine", self.engine, str, 'its name, "local"')
        check_kind("session", self.session, Session, "ropewalk.Session()")
        check_kind("resources", self.resources, Resources, "ropewalk.Resources(cpus=2)")
        check_kind("environment", self.environment, Mapping, 'variables by name, {"OMP_NUM_THREADS": "1"}')


def check_kind(name: str, given: object, kind: type | UnionType, example: str) -> None:
    """Raise unless a value is None or of the expected type.

    Args:
        name: the name of the option.
        given: its value.
        kind: the expected type.
        example: an example for the message.

    Raises:
        TypeError: the value is of another type.
    """
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} is of type {type(given).__name__}; give {example}")
