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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from ropewalk import setting_rules as rules
from ropewalk.errors import FileNotTrusted, SettingsError
from ropewalk.near_names import instead_of
from ropewalk.quantities import parse_duration, parse_memory
from ropewalk.setting_rules import SettingOrigin
from ropewalk.surroundings import engine_here
from ropewalk.trusted_files import check_trusted, owns_folders, read_trusted

PREFIX = "ROPEWALK_"

OWN_VARIABLES = frozenset(
    (
        *("ROPEWALK_RUN_ID", "ROPEWALK_JOB", "ROPEWALK_PROCESS", "ROPEWALK_WORKERS", "ROPEWALK_DOOR"),
        *("ROPEWALK_CONTINUE", "ROPEWALK_FORK", "ROPEWALK_FORK_STEP", "ROPEWALK_SET", "ROPEWALK_TRIAL"),
        "ROPEWALK_BEGUN_RUNS",
        "ROPEWALK_FULL_TRACEBACK",
    )
)
"""Variables that are not settings: those that Ropewalk itself sets for the processes of a run, and the switch of
`user_frames`. Add new ones here."""


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
        if name not in _RULES:
            raise _unknown(name, "asked for by name", _RULES)
        return self.origins.get(name, "default")


def current(**arguments: object) -> Settings:
    """Load the settings of this process: its environment, ./ropewalk.toml and the user's own file.

    Args:
        **arguments: settings by name; None means not given.

    Raises:
        SettingsError: a setting is unknown or has an invalid value.
    """
    return load(arguments, os.environ, default_files(os.environ))


def default_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that `current` reads, in order of precedence."""
    return [Path("ropewalk.toml"), _user_folder(environ) / "config.toml"]


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
    values = _defaults(environ)
    values["engine"], origins = _engine_by_default(environ)
    options: list[_Options] = []
    for name, value, origin, folder in _weakest_first(arguments, environ, files):
        place = SettingOrigin(name, origin, folder)
        if name == _ENGINES:
            options += [_Options(origin, engine, given) for engine, given in _options_by_engine(value, place)]
            continue
        values[name] = _RULES[name](value, place)
        if name == "engine_options":
            # Options in the environment are meant for the engine chosen there, not for one that an argument names.
            engine = None if origin == "argument engine_options" else str(values["engine"])
            options.append(_Options(origin, engine, cast("dict[str, object]", values[name])))
        else:
            origins[name] = origin
    meant = [each for each in options if each.values and each.engine in (None, values["engine"])]
    values["engine_options"] = {name: value for each in meant for name, value in each.values.items()}
    if meant:
        origins["engine_options"] = ", ".join(each.origin for each in reversed(meant))
    if "lease_s" not in origins:
        values["lease_s"] = _LEASE_HERE_S if values["engine"] == "local" else _LEASE_ELSEWHERE_S
    return Settings(**values, origins=origins)  # type: ignore[arg-type]  # each rule returns its field's type


@dataclasses.dataclass(frozen=True, slots=True)
class _Options:
    """Options for one engine; an `engine` of None means the engine that is chosen."""

    origin: str
    engine: str | None
    values: dict[str, object]


def _engine_by_default(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    engine, origin = engine_here(environ)
    return engine, {} if origin == "default" else {"engine": origin}


def _weakest_first(
    arguments: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path]
) -> Iterable[tuple[str, object, str, Path]]:
    """Yield every given value as (name, value, origin, folder for relative paths), lowest precedence first.

    In each place, the name of the engine comes before its options.
    """
    in_files = [_ENGINES, *(name for name in _RULES if name != "engine_options")]
    for file in reversed(files):
        origin = f"file {_shown(file)}"
        for name, value in _read(file).items():
            if name not in in_files:
                raise _unknown(name, origin, in_files)
            yield name, value, origin, file.parent

    variables = {PREFIX + name.upper(): name for name in _RULES}
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in OWN_VARIABLES and variable not in variables:
            raise _unknown(variable, "environment", variables)
    for variable, name in variables.items():
        if environ.get(variable):
            yield name, environ[variable], f"environment {variable}", Path()

    for name, value in arguments.items():
        if name not in _RULES:
            raise _unknown(name, "argument", _RULES)
        if value is not None:
            yield name, value, f"argument {name}", Path()


def refused_files(environ: Mapping[str, str]) -> list[FileNotTrusted]:
    """Return an error for each existing file that `current` skips because another user could have written it."""
    refused: list[FileNotTrusted] = []
    for file in default_files(environ):
        try:
            check_trusted(file)
        except FileNotTrusted as error:
            refused.append(error)
        except OSError:  # it does not exist, or `load` reports why it cannot be read
            pass
    return refused


_warned: set[str] = set()
"""Files that a warning has already named; each process warns once."""


def _warn(refused: FileNotTrusted) -> None:
    import logging  # imported here because it is rarely needed

    if str(refused) not in _warned:
        _warned.add(str(refused))
        logging.getLogger(__name__).warning("%s. Its settings do not apply", refused)


def _read(file: Path) -> dict[str, object]:
    origin = f"file {_shown(file)}"
    try:
        text = read_trusted(file).decode()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except FileNotTrusted as error:
        _warn(error)
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{origin} cannot be read: {error}", origin=origin) from error
    import tomllib  # imported here: most deployments have no file, and the import costs more than the rest of `load`

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{origin} is not TOML: {error}", origin=origin) from error


def _shown(file: Path) -> str:
    return str(file) if file.is_absolute() else f"./{file}"


def _unknown(name: str, origin: str, known: Iterable[str]) -> SettingsError:
    known = sorted(known)
    hint = instead_of(name, known, quoted=False)
    return SettingsError(f"unknown setting {name} ({origin}){hint}", name=name, origin=origin)


_ENGINES = "engines"
"""The table in a file that holds one table of options for each engine."""


def _options_by_engine(value: object, place: SettingOrigin) -> list[tuple[str, dict[str, object]]]:
    rule = "tables of options, one for each engine, as in [engines.slurm]"
    if not isinstance(value, dict):
        raise place.wrong(rule, value)
    tables = cast("dict[str, object]", value)
    for engine, given in tables.items():
        if not isinstance(given, dict):
            raise place.wrong(rule, {engine: given})
    return [(engine, cast("dict[str, object]", given)) for engine, given in tables.items()]


# --- defaults ---------------------------------------------------------------------------------------------------------


# On one machine, silence means a busy file system or a paused virtual machine, and neither is a loss. Between hosts the
# connection may be cut, and the work moves to another host within three seconds.
_LEASE_HERE_S = 30.0
_LEASE_ELSEWHERE_S = 2.5


def _defaults(environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "mode": "processes",
        "key_folder": _user_folder(environ) / "keys",
        "image": None,
        "run_folder": _temporary_folder(environ),
        "store": str(data_folder(environ) / "runs.db"),
        "logs": None,
        # Below the usual limit of processes per user (4096), and far more than one host has CPUs.
        "max_processes": 1000,
        # Long enough for the next pool of a script, and too short for a user to notice the idle processes.
        "session_idle_s": 2.0,
        "advertise": None,
        "hosts": None,
        "code": "bundle",
        # Code is small; a larger bundle contains data that was left in the project folder.
        "code_limit": parse_memory("100M"),
        "cpus": None,
        "gpus": None,
        "memory": None,
        "time_limit_s": None,
    }


def _folder_of(environ: Mapping[str, str], variable: str, otherwise: str) -> Path:
    base = environ.get(variable) or os.path.join(environ.get("HOME") or os.path.expanduser("~"), otherwise)
    return Path(base) / "ropewalk"


def _user_folder(environ: Mapping[str, str]) -> Path:
    return _folder_of(environ, "XDG_CONFIG_HOME", ".config")


def data_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder with what users want to keep: their runs."""
    return _folder_of(environ, "XDG_DATA_HOME", ".local/share")


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder with the records of runs that outlive the command that started them."""
    return _folder_of(environ, "XDG_STATE_HOME", ".local/state")


def _temporary_folder(environ: Mapping[str, str]) -> Path:
    named = (environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR"))
    return next((Path(folder) for folder in named if folder and _may_hold_ours(folder)), Path("/tmp"))


def _may_hold_ours(folder: str) -> bool:
    """Return whether a folder is there, and is this user's or root's: `su` and `sudo -E` keep those of another user.

    Root may write to these as well, and must not: their owner can replace what is in them.
    """
    try:
        return owns_folders(os.stat(folder).st_uid) and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


# --- every setting, and its rule --------------------------------------------------------------------------------------

_RULES: dict[str, Callable[[object, SettingOrigin], object]] = {
    "engine": rules.text,
    "engine_options": rules.options_table,
    "mode": rules.one_of("processes", "threads"),
    "key_folder": rules.path,
    "image": rules.text,
    "run_folder": rules.path,
    "store": rules.path_or_url,
    "logs": rules.path,
    "max_processes": rules.count(1),
    "session_idle_s": rules.seconds(zero=True),
    "lease_s": rules.seconds(zero=False),
    "advertise": rules.ip_address,
    "hosts": rules.count(1),
    "code": rules.one_of("bundle", "shared"),
    "code_limit": rules.quantity(parse_memory),
    "cpus": rules.cpus,
    "gpus": rules.count(0),
    "memory": rules.memory_text,
    "time_limit_s": rules.quantity(parse_duration),
}
