"""The options of `ropewalk run` and `ropewalk submit` for where a script's processes run, and with which resources.

They are settings: each becomes a variable ROPEWALK_* of the script's process, and wins over files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ropewalk import settings
from ropewalk.cli.command_line import PanelOption, argument, failure
from ropewalk.engines import make_engine
from ropewalk.engines.options import words_to_options
from ropewalk.errors import EngineError, SettingsError
from ropewalk.setting_values import PREFIX

_PLACE, _SHARE = "Where", "What each process gets"

engine_options = click.option(
    "--option", "-o", cls=PanelOption, panel=_PLACE, multiple=True, metavar="NAME=VALUE",
    help="An option of the engine, such as partition=gpu; may be repeated.",
)  # fmt: skip
"""The option for the options of an engine."""

_WHERE = (
    click.option(
        "--engine", cls=PanelOption, panel=_PLACE, metavar="NAME", help="Where processes run (default: this machine)."
    ),
    engine_options,
    click.option(
        "--hosts", cls=PanelOption, panel=_PLACE, type=click.IntRange(min=1), metavar="N",
        help="Number of agents to ask for (default: as many as needed).",
    ),
    click.option(
        "--advertise", cls=PanelOption, panel=_PLACE, metavar="IP",
        help="The address at which other hosts reach this one.",
    ),
    click.option(
        "--code", cls=PanelOption, panel=_PLACE, metavar="bundle|shared",
        help="How other hosts get the project's code: sent, or from a shared file system (default: bundle).",
    ),
    click.option("--cpus", cls=PanelOption, panel=_SHARE, type=float, metavar="N", help="CPUs (default: 1)."),
    click.option(
        "--gpus", cls=PanelOption, panel=_SHARE, type=click.IntRange(min=0), metavar="N", help="GPUs (default: none)."
    ),
    click.option(
        "--memory", cls=PanelOption, panel=_SHARE, metavar="SIZE", help="Memory, such as 8G or 512Mi."
    ),
)  # fmt: skip
_SCRIPT = (
    argument("file", required=False, help="The Python file to run."),
    argument("arguments", nargs=-1, metavar="[-- ARGS]...", help="Arguments for the script."),
    click.option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does."),
    click.option(
        "--workers", type=click.IntRange(min=1), metavar="N",
        help="Size of pools that do not set one (default: the usable CPUs).",
    ),
    click.option("--mode", metavar="MODE", help="Run programs as threads or processes (default: processes)."),
    click.option(
        "--ranks", metavar="N|MIN:MAX",
        help="Run the script itself in N processes, as torchrun does; MIN:MAX uses as many as there is room for.",
    ),
    click.option(
        "--max-restarts", type=click.IntRange(min=0), metavar="N",
        help="How many times all ranks restart together after one has failed (default: 0).",
    ),
    click.option(
        "--dry-run", is_flag=True, help="Print what would be sent to the engine, and how many times; run nothing."
    ),
    *_WHERE,
    click.option(
        "--time", cls=PanelOption, panel=_SHARE, metavar="TIME",
        help="Time limit of each job, but of none on this host: 2h, 1:30:00, or seconds.",
    ),
)  # fmt: skip


def where_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options for where processes run and what each gets; `place` takes them."""
    return _given(command, _WHERE)


def script_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a script to run, and all options for its processes.

    `place` takes them, but for `file`, `arguments`, `module`, `ranks`, `max_restarts` and `dry_run`.
    """
    return _given(command, _SCRIPT)


def _given(command: Callable[..., None], options: Sequence[Callable[..., Any]]) -> Callable[..., None]:
    for option in reversed(options):  # as decorators one above the other
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Placing:
    """The settings of a script, and the variables that pass on those given on the command line."""

    settings: settings.Settings
    variables: dict[str, str]


def place(*, option: Sequence[str] = (), time: str | None = None, workers: int | None = None, **given: Any) -> Placing:
    """Make settings from the options of the command line, which win over the environment and files.

    Raises:
        SettingsError: a value is invalid; the message names it.
        EngineError: there is no such engine, or it cannot be used here.
    """
    given = {name: value for name, value in {**given, "time_limit_s": time}.items() if value is not None}
    options = words_to_options(option)
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


def place_or_refuse(**given: Any) -> Placing:
    """As `place`, but an error ends the command."""
    try:
        return place(**given)
    except (SettingsError, EngineError) as error:
        raise failure(str(error)) from None
