"""Where the values of settings come from: arguments, the environment, files and defaults, each checked by its rule.

What they mean is in `settings.py`. The two are apart because the record of all settings is a dataclass, whose import
takes longer than this one: what decides before the first imports of a program reads the values alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

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


def default_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that `current` reads, in order of precedence."""
    return [Path("ropewalk.toml"), _user_folder(environ) / "config.toml"]


def values_and_origins(
    arguments: Mapping[str, object], environ: Mapping[str, str], files: Sequence[Path]
) -> tuple[dict[str, object], dict[str, str]]:
    """Return the value of each setting and the origins of those that are not defaults; see `settings.load`.

    Raises:
        SettingsError: a setting is unknown or has an invalid value.
    """
    values = _defaults(environ)
    values["engine"], origins = _engine_by_default(environ)
    options: list[_Options] = []
    for name, value, origin, folder in _weakest_first(arguments, environ, files):
        place = SettingOrigin(name, origin, folder)
        if name == _ENGINES:
            options += [_Options(origin, engine, given) for engine, given in _options_by_engine(value, place)]
            continue
        values[name] = RULES[name](value, place)
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
    return values, origins


class _Options(NamedTuple):
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
    in_files = [_ENGINES, *(name for name in RULES if name != "engine_options")]
    for file in reversed(files):
        origin = f"file {_shown(file)}"
        for name, value in _read(file).items():
            if name not in in_files:
                raise unknown_setting(name, origin, in_files)
            yield name, value, origin, file.parent

    variables = {PREFIX + name.upper(): name for name in RULES}
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in OWN_VARIABLES and variable not in variables:
            raise unknown_setting(variable, "environment", variables)
    for variable, name in variables.items():
        if environ.get(variable):
            yield name, environ[variable], f"environment {variable}", Path()

    for name, value in arguments.items():
        if name not in RULES:
            raise unknown_setting(name, "argument", RULES)
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
    except PermissionError as error:
        if not os.access(file.parent, os.X_OK):  # the folder of another user, in which `sudo -u` or a job began
            return {}
        raise SettingsError(f"{origin} cannot be read: {error}", origin=origin) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{origin} cannot be read: {error}", origin=origin) from None
    import tomllib  # imported here: most deployments have no file, and the import costs more than the rest of `load`

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{origin} is not TOML: {error}", origin=origin) from None


def _shown(file: Path) -> str:
    return str(file) if file.is_absolute() else f"./{file}"


def unknown_setting(name: str, origin: str, known: Iterable[str]) -> SettingsError:
    """Return an error that names the closest setting; the caller raises it."""
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

RULES: dict[str, Callable[[object, SettingOrigin], object]] = {
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
