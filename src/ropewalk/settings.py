"""Settings of a deployment: the facts that change when the same program moves to another machine.

Options of a pool or a program belong to their constructors. Each setting is looked up in four places, and the first
place that has a value wins:

    argument > environment ROPEWALK_* > file (./ropewalk.toml, then the user's) > default

The options of an engine are merged option by option instead. In a file they are in a table named after the engine,
`[engines.slurm]`; options in the environment belong to the engine that the environment (or a file) names.

A file that another user could have written is not read, because the options of an engine name programs that run here:
a user who plants a file in a shared folder must not choose which code runs, nor prevent a run by causing an error. Such
a file is skipped with a warning, and `ropewalk doctor` shows it.

The origin of each value is kept, so that an error or `ropewalk doctor` can report it. An unknown name is an error in
every place: a misspelt setting that is silently ignored costs an afternoon.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ropewalk.setting_values import RULES, default_files, unknown_setting, values_and_origins

__all__ = ["Settings", "current", "load"]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a deployment; `load` and `current` create it."""

    engine: str
    """Name of the engine that places agents, such as "local" or "slurm"."""
    engine_options: Mapping[str, object] = dataclasses.field(hash=False)
    """The engine's own options, such as partition or namespace; `ropewalk doctor --engine NAME` lists them."""
    mode: str
    """How `launch` runs a program if no mode is given: "processes", or "threads" in one process for debugging."""
    key_folder: Path
    """Folder of the keys that outlive a run."""
    image: str | None
    """Container image in which agents start, for engines that use images."""
    run_folder: Path
    """Folder in which each run creates its own folder (`ropewalk-*`, mode 0700).

    Keep the path short: a socket path has at most 107 bytes.
    """
    store: str
    """Where runs are kept: path of a SQLite file, or URL of a PostgreSQL database, such as "postgresql://host/runs"."""
    logs: Path | None
    """Folder where the output of processes is kept after the run; None deletes the output when the run ends."""
    max_processes: int
    """Maximum number of processes on one host, nested pools included."""
    session_idle_s: float
    """Seconds for which an unused session stays open, so that the next pool starts quickly."""
    lease_s: float
    """Seconds of silence after which an agent or its launcher counts as lost."""
    advertise: str | None
    """IP address at which agents on other hosts reach the launcher; None selects the interface with a route to them."""
    hosts: int | None
    """Number of agents to request; None requests as many as the processes need."""
    code: str
    """How other hosts get the project's code: "bundle" sends it, "shared" expects it at the same path there."""
    code_limit: int
    """Maximum size of a code bundle in bytes.

    A larger bundle usually contains data or results by mistake, or belongs on a shared file system.
    """
    cpus: float | None
    """CPUs of a process whose pool or node requests none."""
    gpus: int | None
    """GPUs of a process whose pool or node requests none."""
    memory: str | None
    """Memory of a process whose pool or node requests none, such as "8G"."""
    time_limit_s: float | None
    """Seconds after which the engine ends each job; None keeps the engine's own limit."""
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str], repr=False, compare=False)
    """Origin of each value, by setting name; read it with `origin`."""

    def origin(self, name: str) -> str:
        """Return the origin of a value, such as "environment ROPEWALK_ENGINE", "file ./ropewalk.toml" or "default".

        Args:
            name: name of the setting.

        Raises:
            SettingsError: there is no such setting.
        """
        if name not in RULES:
            raise unknown_setting(name, "asked for by name", RULES)
        return self.origins.get(name, "default")


def current(**arguments: object) -> Settings:
    """Load the settings of this process: its environment, ./ropewalk.toml and the user's own file.

    Args:
        **arguments: settings by name; None means not given.

    Raises:
        SettingsError: a setting is unknown or has an invalid value.
    """
    return load(arguments, os.environ, default_files(os.environ))


def load(arguments: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path]) -> Settings:
    """Merge arguments, environment, files and defaults into one record.

    Args:
        arguments: settings by name; None means not given.
        environ: the environment; variables that do not start with ROPEWALK_ are ignored, and empty variables count as
            not set.
        files: TOML files in order of precedence. Missing files are skipped; files that another user could have written
            are skipped with a warning. A relative path in a file is relative to that file.

    Raises:
        SettingsError: a setting is unknown or has an invalid value; names the setting, its origin and the rule.
    """
    values, origins = values_and_origins(arguments, environ, files)
    return Settings(**values, origins=origins)  # type: ignore[arg-type]  # each rule returns its field's type
