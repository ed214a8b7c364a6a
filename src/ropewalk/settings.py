"""What this place is like: the facts of a deployment, and nothing else.

Knobs of a pool or a program sit in their constructors. Here stand only the
things that change when the same program moves to another machine. Each value
is looked for in four places, and the first that names it wins:

    argument > environment ROPEWALK_* > file (./ropewalk.toml, then the user's) > default

The options of an engine are merged option by option instead. In a file they stand in a table of the engine's name,
`[engines.slurm]`; those in the environment belong to the engine that the environment (or a file) names.

A file that another user could have written is not read, because an engine's options name programs that run here:
whoever plants one in a shared folder must neither choose what runs nor, by an error, keep it from running. So it is
passed by with a warning, and `ropewalk doctor` shows it.

Where each value came from is kept, so that an error or `ropewalk doctor` can
say it. A name that nobody knows is refused everywhere: a misspelt setting that
is silently ignored costs an afternoon.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from ropewalk import setting_rules as rules
from ropewalk.errors import FileNotTrusted, SettingsError
from ropewalk.quantities import parse_duration, parse_memory
from ropewalk.setting_rules import SettingOrigin
from ropewalk.surroundings import engine_here
from ropewalk.trusted_files import check_trusted, read_trusted

PREFIX = "ROPEWALK_"

#: Variables that Ropewalk itself gives to the processes of a run. They are no settings; new ones are listed here.
OWN_VARIABLES = frozenset({"ROPEWALK_RUN_ID", "ROPEWALK_JOB", "ROPEWALK_PROCESS", "ROPEWALK_WORKERS", "ROPEWALK_DOOR"})


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The facts of the place we run in; made by `load` or `current`."""

    engine: str
    """Name of the engine that places agents, such as "local" or "slurm"."""
    engine_options: Mapping[str, object] = dataclasses.field(hash=False)
    """The engine's own options, such as partition or namespace; `ropewalk doctor --engine NAME` lists them."""
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
    advertise: str | None
    """IP address at which agents on other hosts reach the launcher; None finds the interface that leads to them."""
    hosts: int | None
    """How many agents are asked for; None means as many as the processes need."""
    code: str
    """How the project's code comes to other hosts: "bundle" sends it, "shared" finds it at the same path there."""
    code_limit: int
    """Bytes that a bundle of code may have; more is a mistake (data, results), or belongs on a shared file system."""
    cpus: float | None
    """CPUs of a process whose pool or node asks for none."""
    gpus: int | None
    """GPUs of a process whose pool or node asks for none."""
    memory: str | None
    """Memory of a process whose pool or node asks for none, such as "8G"."""
    time_limit_s: float | None
    """Seconds after which the engine ends each job; None leaves it to the engine's own limit."""
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
        files: TOML files, the stronger one first; those that do not exist are skipped, and with a warning those that
            another user could have written. A relative path in a file means relative to that file.

    Raises:
        SettingsError: a setting is unknown or has a value that it cannot have; names the setting, its origin and rule.
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
            # What the environment holds was meant for the engine chosen there, not for one that a call names.
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
    """Options that somebody gave to an engine; None means whichever is chosen."""

    origin: str
    engine: str | None
    values: dict[str, object]


def _engine_by_default(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    engine, origin = engine_here(environ)
    return engine, {} if origin == "default" else {"engine": origin}


def _weakest_first(
    arguments: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path]
) -> Iterable[tuple[str, object, str, Path]]:
    """Every value that somebody gave, as (name, value, origin, folder for relative paths).

    The engine's name comes before its options.
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
    """Why `current` does not read some of the files that are there: another user could have written them."""
    refused: list[FileNotTrusted] = []
    for file in default_files(environ):
        try:
            check_trusted(file)
        except FileNotTrusted as error:
            refused.append(error)
        except OSError:  # not there, or `load` says why it cannot be read
            pass
    return refused


#: What was warned of already; once in a process is enough.
_warned: set[str] = set()


def _warn(refused: FileNotTrusted) -> None:
    import logging  # here, as it is hardly ever needed

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
    import tomllib  # here, because most places have no file and importing it costs more than all the rest

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{origin} is not TOML: {error}", origin=origin) from error


def _shown(file: Path) -> str:
    return str(file) if file.is_absolute() else f"./{file}"


def _unknown(name: str, origin: str, known: Iterable[str]) -> SettingsError:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return SettingsError(f"unknown setting {name} ({origin}){hint} Known: {', '.join(known)}", name=name, origin=origin)


#: The table of a file whose tables are the options of engines, by the engine's name.
_ENGINES = "engines"


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


# On one machine only a busy file system or a paused virtual machine is silent, and neither is lost. Between hosts a
# plug may have been pulled, and the work goes elsewhere within three seconds.
_LEASE_HERE_S = 30.0
_LEASE_ELSEWHERE_S = 2.5


def _defaults(environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "mode": "processes",
        "key_folder": _user_folder(environ) / "keys",
        "image": None,
        "run_folder": _temporary_folder(environ),
        "logs": None,
        # Below the usual limits of processes per user (4096) and far above what one host computes with.
        "max_processes": 1000,
        # Long enough for the next pool of a script, too short for anybody to notice what is left.
        "session_idle_s": 2.0,
        "advertise": None,
        "hosts": None,
        "code": "bundle",
        # Code is small; what is larger is data that somebody forgot in the project folder.
        "code_limit": parse_memory("100M"),
        "cpus": None,
        "gpus": None,
        "memory": None,
        "time_limit_s": None,
    }


def _user_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "ropewalk"


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where Ropewalk remembers runs of this user that outlive the command that began them."""
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local/state")
    return Path(base) / "ropewalk"


def _temporary_folder(environ: Mapping[str, str]) -> Path:
    # XDG_RUNTIME_DIR outlives `su` and `sudo`, where it names a folder that is missing or somebody else's.
    for candidate in (environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR")):
        if candidate and os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path("/tmp")


# --- every setting, and its rule --------------------------------------------------------------------------------------

_RULES: dict[str, Callable[[object, SettingOrigin], object]] = {
    "engine": rules.text,
    "engine_options": rules.options_table,
    "mode": rules.one_of("processes", "threads"),
    "key_folder": rules.path,
    "image": rules.text,
    "run_folder": rules.path,
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
