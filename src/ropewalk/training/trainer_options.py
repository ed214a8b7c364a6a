"""Options of a `Trainer` that belong together: of the snapshots it recovers from, and of the processes it runs on."""

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
    """How often snapshots for recovery are taken, and where a further copy of the newest ones is.

    Example:
        >>> Snapshots(every=100, copy="launcher")
        Snapshots(every=100, copy='launcher')

    Args:
        every: steps between two snapshots, at least 1; "auto": as few steps as keep their cost within 3 % of the time.
        copy: where a copy of the newest snapshots is, beside those that each process and its keeper have, so that
            training survives any deaths at once: "launcher", in the memory of this process; or a folder that all
            processes reach. "auto": with the launcher, if they take 32 MiB or less, or if there is one process only.
            None: nowhere.

    Raises:
        ValueError: `every` is less than 1.
        TypeError: `copy` is no folder, and none of the words.
    """

    every: int | Literal["auto"] = "auto"
    copy: Literal["auto", "launcher"] | str | Path | None = "auto"

    def __post_init__(self) -> None:
        self.pace()
        check_kind("copy of snapshots", self.copy, str | Path, '"auto", "launcher", a folder, or None')

    def pace(self) -> SnapshotPace:
        """What counts the steps of one training, and says when a snapshot is due."""
        return SnapshotPace(self.every)

    @property
    def where(self) -> Where:
        """`copy`, with a folder as a path."""
        if self.copy is None or self.copy == "auto" or self.copy == "launcher":
            return self.copy
        return Path(self.copy)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Where the processes of a trainer run, and with what.

    Example:
        >>> ProcessOptions(engine="slurm", resources=Resources(cpus=4), name="unet").name
        'unet'

    Args:
        engine: where processes run; None: the setting.
        session: whose processes they are; None: one that all programs and pools of this process share.
        resources: what each process asks for; None: the setting.
        environment: variables for the processes, by name; None: none.
        name: of the program that the processes are; shown in `ropewalk ps`.

    Raises:
        TypeError: an option is of another kind.
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
    """Refuse what is neither None nor of a kind.

    Raises:
        TypeError: it is neither.
    """
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} is of type {type(given).__name__}; give {example}")
