"""What this place is like: the facts of a deployment, and nothing else.

Knobs of a pool or a program sit in their constructors. Here stand only the
things that change when the same program moves to another machine. Each value
is looked for in four places, and the first that names it wins:

    argument > environment ROPEWALK_* > file (./ropewalk.toml, then the user's) > default

Where each value came from is kept, so that an error or `ropewalk doctor` can
say it. A name that nobody knows is refused everywhere: a misspelt setting that
is silently ignored costs an afternoon.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ropewalk.errors import SettingsError

PREFIX = "ROPEWALK_"

#: Variables that Ropewalk itself gives to the processes of a run. They are no settings; new ones are listed here.
OWN_VARIABLES = frozenset({"ROPEWALK_RUN_ID", "ROPEWALK_JOB", "ROPEWALK_PROCESS", "ROPEWALK_WORKERS"})


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The facts of the place we run in; made by `load` or `current`."""

    engine: str
    """Name of the engine that places agents, such as "local" or "slurm"."""
    mode: str
    """How programs run whose `launch` names no mode: "processes", or "threads" of one process for the debugger."""
    key_folder: Path
    """Where keys that outlive a run are kept."""
    image: str | None
    """Container image in which agents start, for the engines that use one."""
    run_folder: Path
    """Folder in which each run makes its own folder (`ropewalk-*`, mode 0700). Short: socket paths end at 107 bytes."""
    logs: Path | None
    """Folder where the output of processes is kept after the run; None keeps it only while the run lives."""
    max_processes: int
    """How many processes one host may hold, nested pools included."""
    session_idle_s: float
    """Seconds for which a session outlives its last user, so that the next pool finds it warm."""
    lease_s: float
    """Seconds of silence after which an agent or its launcher counts as lost."""
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str], repr=False, compare=False)
    """Where each value came from; `origin` reads it."""

    def origin(self, name: str) -> str:
        """Say where a value came from: "environment ROPEWALK_ENGINE", "file ./ropewalk.toml", "default".

        Raises:
            SettingsError: there is no such setting.
        """
        if name not in _RULES:
            raise _unknown(name, "asked for by name", _RULES)
        return self.origins.get(name, "default")


def current(**arguments: object) -> Settings:
    """Load the settings of this process: its environment, ./ropewalk.toml and the user's own file.

    Args:
        **arguments: settings given by the caller; None means not given.

    Raises:
        SettingsError: a setting is unknown or has a value that it cannot have.
    """
    return load(arguments, os.environ, default_files(os.environ))


def default_files(environ: Mapping[str, str]) -> list[Path]:
    """The files that `current` reads, the stronger one first."""
    return [Path("ropewalk.toml"), _user_folder(environ) / "config.toml"]


def load(arguments: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path]) -> Settings:
    """Merge arguments, environment, files and defaults into one record.

    Args:
        arguments: settings by name; None means not given.
        environ: the environment; variables that do not start with ROPEWALK_ are ignored, empty ones count as not set.
        files: TOML files, the stronger one first; those that do not exist are skipped. A relative path in a file
            means relative to that file.

    Raises:
        SettingsError: a setting is unknown or has a value that it cannot have; names the setting, its origin and rule.
    """
    values = _defaults(environ)
    origins: dict[str, str] = {}
    for name, value, origin, folder in _weakest_first(arguments, environ, files):
        values[name] = _RULES[name](value, _Place(name, origin, folder))
        origins[name] = origin
    return Settings(**values, origins=origins)  # type: ignore[arg-type]  # each rule returns its field's type


def _weakest_first(
    arguments: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path]
) -> Iterable[tuple[str, object, str, Path]]:
    """Every value that somebody gave, as (name, value, origin, folder for relative paths)."""
    for file in reversed(files):
        origin = f"file {_shown(file)}"
        for name, value in _read(file).items():
            if name not in _RULES:
                raise _unknown(name, origin, _RULES)
            yield name, value, origin, file.parent

    variables = {PREFIX + name.upper(): name for name in _RULES}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in OWN_VARIABLES:
            continue
        if variable not in variables:
            raise _unknown(variable, "environment", variables)
        if value:
            yield variables[variable], value, f"environment {variable}", Path()

    for name, value in arguments.items():
        if name not in _RULES:
            raise _unknown(name, "argument", _RULES)
        if value is not None:
            yield name, value, f"argument {name}", Path()


def _read(file: Path) -> dict[str, object]:
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"file {_shown(file)} cannot be read: {error}", origin=f"file {_shown(file)}") from error
    import tomllib  # here, because most places have no file and importing it costs more than all the rest

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"file {_shown(file)} is not TOML: {error}", origin=f"file {_shown(file)}") from error


def _shown(file: Path) -> str:
    return str(file) if file.is_absolute() else f"./{file}"


def _unknown(name: str, origin: str, known: Iterable[str]) -> SettingsError:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return SettingsError(f"unknown setting {name} ({origin}){hint} Known: {', '.join(known)}", name=name, origin=origin)


# --- defaults ---------------------------------------------------------------------------------------------------------


def _defaults(environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "engine": "local",
        "mode": "processes",
        "key_folder": _user_folder(environ) / "keys",
        "image": None,
        "run_folder": _temporary_folder(environ),
        "logs": None,
        # Below the usual limits of processes per user (4096) and far above what one host computes with.
        "max_processes": 1000,
        # Long enough for the next pool of a script, too short for anybody to notice what is left.
        "session_idle_s": 2.0,
        # A busy shared file system or a paused virtual machine stands still for seconds without being lost.
        "lease_s": 30.0,
    }


def _user_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "ropewalk"


def _temporary_folder(environ: Mapping[str, str]) -> Path:
    # XDG_RUNTIME_DIR outlives `su` and `sudo`, where it names a folder that is missing or somebody else's.
    for candidate in (environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR")):
        if candidate and os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path("/tmp")


# --- rules: one function per kind of value, from what was given to what is kept ---------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where a value stands, for the message and for relative paths."""

    name: str
    origin: str
    folder: Path

    def wrong(self, rule: str, value: object) -> SettingsError:
        message = f"setting {self.name} must be {rule}, not {value!r} (from {self.origin})"
        return SettingsError(message, name=self.name, origin=self.origin, value=value)


def _text(value: object, place: _Place) -> str:
    if not isinstance(value, str) or not value.strip():
        raise place.wrong("a text that is not empty", value)
    return value.strip()


def _one_of(*words: str) -> Callable[[object, _Place], str]:
    def word(value: object, place: _Place) -> str:
        if value not in words:
            raise place.wrong(f"one of {', '.join(words)}", value)
        return str(value)

    return word


def _path(value: object, place: _Place) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise place.wrong("a path", value)
    try:
        return place.folder / Path(value).expanduser()
    except RuntimeError as error:  # "~name" of somebody who does not exist
        raise place.wrong("a path whose home folder exists", value) from error


def _count(value: object, place: _Place) -> int:
    rule = "a whole number of at least 1"
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise place.wrong(rule, value) from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise place.wrong(rule, value)
    return value


def _seconds(*, zero: bool) -> Callable[[object, _Place], float]:
    rule = "a number of seconds, 0 or more" if zero else "a number of seconds above 0"

    def seconds(value: object, place: _Place) -> float:
        given = value
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise place.wrong(rule, given) from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise place.wrong(rule, given)
        if value < 0 or (value == 0 and not zero):
            raise place.wrong(rule, given)
        return float(value)

    return seconds


_RULES: dict[str, Callable[[object, _Place], object]] = {
    "engine": _text,
    "mode": _one_of("processes", "threads"),
    "key_folder": _path,
    "image": _text,
    "run_folder": _path,
    "logs": _path,
    "max_processes": _count,
    "session_idle_s": _seconds(zero=True),
    "lease_s": _seconds(zero=False),
}
