"""The options of `ropewalk run` and `ropewalk submit` for where a script's processes run, and with which resources.

They are settings: each becomes a variable ROPEWALK_* of the script's process, and wins over files.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ropewalk import settings
from ropewalk.engines import make_engine
from ropewalk.engines.options import words_to_options
from ropewalk.errors import EngineError, SettingsError
from ropewalk.escaping import escaped_lines
from ropewalk.setting_values import PREFIX

_PLACE, _SHARE = "Where", "What each process gets"

File = Annotated[str | None, typer.Argument(help="The Python file to run.", show_default=False)]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments for the script.", show_default=False)
]
Module = Annotated[
    str | None, typer.Option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does.")
]
Engine = Annotated[
    str | None, typer.Option(help="Where processes run (default: this machine).", rich_help_panel=_PLACE)
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", rich_help_panel=_PLACE, show_default=False,
        help="An option of the engine, such as partition=gpu; may be repeated.",
    ),
]  # fmt: skip
Hosts = Annotated[
    int | None,
    typer.Option(min=1, rich_help_panel=_PLACE, help="Number of agents to ask for (default: as many as needed)."),
]
Advertise = Annotated[
    str | None,
    typer.Option(metavar="IP", rich_help_panel=_PLACE, help="The address at which other hosts reach this one."),
]
Code = Annotated[
    str | None,
    typer.Option(
        metavar="bundle|shared", rich_help_panel=_PLACE,
        help="How other hosts get the project's code: sent, or from a shared file system (default: bundle).",
    ),
]  # fmt: skip
Workers = Annotated[
    int | None, typer.Option(min=1, help="Size of pools that do not set one (default: the usable CPUs).")
]
Mode = Annotated[
    str | None, typer.Option(help="Run programs as threads or processes (default: processes).", metavar="MODE")
]
Ranks = Annotated[
    str | None,
    typer.Option(
        metavar="N|MIN:MAX", show_default=False,
        help="Run the script itself in N processes, as torchrun does; MIN:MAX uses as many as there is room for.",
    ),
]  # fmt: skip
MaxRestarts = Annotated[
    int | None,
    typer.Option(
        min=0, show_default=False,
        help="How many times all ranks restart together after one has failed (default: 0).",
    ),
]  # fmt: skip
Cpus = Annotated[float | None, typer.Option(help="CPUs (default: 1).", rich_help_panel=_SHARE)]
Gpus = Annotated[int | None, typer.Option(min=0, help="GPUs (default: none).", rich_help_panel=_SHARE)]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory, such as 8G or 512Mi.", rich_help_panel=_SHARE)
]
Time = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Time limit: 2h, 1:30:00, or seconds.", rich_help_panel=_SHARE),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be sent to the engine, and how many times; run nothing.")
]


@dataclass(frozen=True, slots=True)
class Placing:
    """The settings of a script, and the variables that pass on those given on the command line."""

    settings: settings.Settings
    variables: dict[str, str]


def place(*, option: list[str] | None, time: str | None, workers: int | None, **given: Any) -> Placing:
    """Make settings from the options of the command line, which win over the environment and files.

    Raises:
        SettingsError: a value is invalid; the message names it.
        EngineError: there is no such engine, or it cannot be used here.
    """
    given = {name: value for name, value in {**given, "time_limit_s": time}.items() if value is not None}
    options = words_to_options(option or [])
    if options:
        given["engine_options"] = options
    if not given:
        return Placing(settings.current(), _workers(workers))
    settings.load(given, {}, [])  # checked first, so that an error names the argument
    chosen = settings.current(**given)
    if "engine" in given or options:
        make_engine(chosen.engine, chosen.engine_options).close()
    variables = {PREFIX + name.upper(): str(value) for name, value in given.items()}
    if options or os.environ.get("ROPEWALK_ENGINE_OPTIONS"):  # options of another engine must not reach this one
        variables["ROPEWALK_ENGINE_OPTIONS"] = json.dumps(dict(chosen.engine_options), default=str)
    return Placing(chosen, variables | _workers(workers))


def _workers(workers: int | None) -> dict[str, str]:
    return {} if workers is None else {"ROPEWALK_WORKERS": str(workers)}


def place_or_refuse(command: str, **given: Any) -> Placing:
    """As `place`, but an error ends the command."""
    try:
        return place(**given)
    except (SettingsError, EngineError) as error:
        raise refusal(command, str(error)) from None


def refusal(command: str, message: str) -> typer.Exit:
    """Report wrong usage of a command; the caller raises the exception that is returned."""
    typer.echo(f"ropewalk {command}: {escaped_lines(message)}", err=True)
    return typer.Exit(2)
