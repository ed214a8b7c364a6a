"""`ropewalk search`: try many configurations of a training function.

ropewalk search train.py:train --space space.toml --metric accuracy --trials 64 --scheduler "asha R=81 eta=3"
ropewalk search train.py:train --space space.toml --metric loss --mode min --trials 100 --sampler tpe --engine slurm
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ropewalk.cli import placing, script
from ropewalk.engines.resources import Resources
from ropewalk.errors import RopewalkError, SearchFailed, SearchInvalid
from ropewalk.escaping import escaped_lines
from ropewalk.processes.fleet import default_resources
from ropewalk.program.script_code import NotAProgram
from ropewalk.user_frames import remote_text


class ModeChoice(StrEnum):
    """Whether a metric is maximised or minimised."""

    MAX = "max"
    MIN = "min"


def search(
    function: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="train(run, **hyperparameters).")],
    space: Annotated[Path, typer.Option(help="TOML file with the hyperparameters and their distributions.")],
    metric: Annotated[
        list[str], typer.Option(help="Name of the metric in run.log; may be repeated for several objectives.")
    ],
    mode: Annotated[
        list[ModeChoice] | None, typer.Option(help="max (the default) or min, once or for each metric.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Number of trials; not needed for a grid.")] = None,
    sampler: Annotated[
        str,
        typer.Option(help='random, grid, sobol, tpe, cmaes, ...; with options: "tpe n_startup_trials=20".'),
    ] = "random",
    scheduler: Annotated[
        str,
        typer.Option(help='none, asha, hyperband, adaptive_asha, ...; with options: "asha R=81 eta=3".'),
    ] = "none",
    max_concurrent: Annotated[
        int | None, typer.Option("--max-concurrent", min=1, help="Trials at a time (default: the usable CPUs).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the search (default: the function's).")] = None,
    project: Annotated[str | None, typer.Option(help="Project in the store of runs (default: the name).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 0,
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", metavar="SECONDS", help="Pause all trials after this time, and exit."),
    ] = None,
    begin_anew: Annotated[
        bool, typer.Option("--begin-anew", help="Begin a new search, even if the store has one of this name.")
    ] = False,
    engine: placing.Engine = None,
    option: placing.Options = None,
    cpus: placing.Cpus = None,
    gpus: placing.Gpus = None,
    memory: placing.Memory = None,
    hosts: placing.Hosts = None,
    advertise: placing.Advertise = None,
    code: placing.Code = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the search to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trials as JSON.")] = False,
) -> None:
    """Search for hyperparameters of a training function: many trials, kept in the store of runs.

    Ctrl-C pauses all trials. The same command resumes the search, even after this process was killed, and with more
    --trials also a complete search. Exit code 1 if the search fails, 2 for wrong usage, 130 after Ctrl-C.
    """
    placed = placing.place_or_refuse(
        "search", engine=engine, option=option, workers=None, cpus=cpus, gpus=gpus, memory=memory, hosts=hosts,
        time=None, advertise=advertise, code=code,
    )  # fmt: skip
    os.environ.update(placed.variables)
    try:
        made = _made(
            function, space, sampler=sampler, scheduler=scheduler, metric=metric, mode=_modes(mode), trials=trials,
            max_concurrent=max_concurrent, name=name, project=project, seed=seed, time_limit_s=time_limit,
            resume=not begin_anew, resources=default_resources(placed.settings),
        )  # fmt: skip
        results = made.run()
    except (NotAProgram, SearchInvalid, OSError) as error:
        raise placing.refusal("search", str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (SearchFailed, RopewalkError) as error:
        if above := remote_text(error.__cause__):  # escaped already
            typer.echo(above.strip("\n"), err=True)
        typer.echo(f"ropewalk search: {escaped_lines(str(error))}", err=True)
        raise typer.Exit(1) from None
    if plot is not None:
        results.plot(plot)
    typer.echo(json.dumps(results.to_records()) if as_json else str(results))


def _made(function: str, space: Path, *, sampler: str, scheduler: str, resources: Resources, **settings: Any) -> Any:
    """Make the search; importing what it needs takes most of a second."""
    from ropewalk.search.samplers import SAMPLERS
    from ropewalk.search.schedulers import make_scheduler
    from ropewalk.search.search import Search
    from ropewalk.search.space import SearchSpace

    train = script.function_of(function, "a training function")
    sampler_name, sampler_options = parse_part(sampler)
    scheduler_name, scheduler_options = parse_part(scheduler)
    return Search(
        train,
        SearchSpace.from_toml(space),
        sampler=SAMPLERS.make(sampler_name, sampler_options),
        scheduler=make_scheduler(scheduler_name, **scheduler_options),
        resources=resources,
        **settings,
    )


def parse_part(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a sampler or scheduler, as in "asha R=81 eta=3".

    Raises:
        SearchInvalid: an option has no value.
    """
    name, *words = text.split() or [""]
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise SearchInvalid(f"{text!r}: options of {name!r} are written NAME=VALUE, not {word!r}")
        options[key] = value
        with contextlib.suppress(ValueError, SyntaxError):  # a word is a string
            options[key] = ast.literal_eval(value)
    return name, options


def _modes(given: list[ModeChoice] | None) -> Any:
    modes = [each.value for each in given or []]
    return modes[0] if len(modes) == 1 else modes or "max"
