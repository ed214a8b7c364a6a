"""`ropewalk search`: try many configurations of a training function.

ropewalk search train.py:train --space space.toml --metric accuracy --trials 64 --scheduler "asha R=81 eta=3"
ropewalk search train.py:train --space space.toml --metric loss --mode min --trials 100 --sampler tpe --engine slurm
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ropewalk.cli import placing, script
from ropewalk.cli.command_line import PanelCommand, argument, failure
from ropewalk.cli.runs_data import to_json
from ropewalk.engines.resources import Resources
from ropewalk.errors import RopewalkError, SearchFailed, SearchInvalid
from ropewalk.processes.fleet import default_resources
from ropewalk.program.script_code import NotAProgram
from ropewalk.quantities import parse_duration
from ropewalk.user_frames import remote_text

_PICTURES = (".png", ".pdf", ".svg")
"""The files that `SearchResults.plot` writes."""


@click.command(cls=PanelCommand)
@argument("function", metavar="FILE.py:FUNCTION", help="train(run, **hyperparameters).")
@click.option(
    "--space",
    type=click.Path(path_type=Path),
    help="TOML file with the hyperparameters and their distributions (default: the function asks by run.suggest_...).",
)
@click.option(
    "--metric",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Name of the metric in run.log; may be repeated for several objectives.",
)
@click.option(
    "--mode",
    type=click.Choice(["max", "min"]),
    multiple=True,
    help="max (the default) or min, once or for each metric.",
)
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Number of trials; not needed for a grid.")
@click.option(
    "--sampler",
    default="random",
    metavar="NAME",
    help='random, grid, sobol, tpe, cmaes, ...; with options: "tpe n_startup_trials=20".',
)
@click.option(
    "--scheduler",
    default="none",
    metavar="NAME",
    help='none, asha, hyperband, adaptive_asha, ...; with options: "asha R=81 eta=3".',
)
@click.option(
    "--max-concurrent", type=click.IntRange(min=1), metavar="N", help="Trials at a time (default: the usable CPUs)."
)
@click.option("--name", metavar="NAME", help="Name of the search (default: the function's).")
@click.option("--project", metavar="NAME", help="Project in the store of runs (default: the name).")
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of all randomness.")
@click.option(
    "--time-limit", metavar="TIME", help="Pause all trials after this time, and exit: 2h, 1:30:00, or seconds."
)
@click.option("--begin-anew", is_flag=True, help="Begin a new search, even if the store has one of this name.")
@placing.where_options
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the search to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the trials as JSON.")
def search(
    function: str,
    space: Path | None,
    metric: tuple[str, ...],
    mode: tuple[str, ...],
    trials: int | None,
    sampler: str,
    scheduler: str,
    max_concurrent: int | None,
    name: str | None,
    project: str | None,
    seed: int,
    time_limit: str | None,
    begin_anew: bool,
    plot: Path | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Search for hyperparameters of a training function: many trials, kept in the store of runs.

    Ctrl-C pauses all trials. The same command resumes the search, even after this process was killed, and with more
    --trials also a complete search. Exit code 1 if the search fails, 2 for wrong usage, 130 after Ctrl-C.
    """
    if plot is not None and (plot.suffix not in _PICTURES or not plot.parent.is_dir()):
        raise failure(f"--plot {plot}: a file that ends in {', '.join(_PICTURES)}, in a folder that is there")
    if space is not None and not space.exists():
        raise failure(f"--space {space}: there is no such file; it is a TOML file with a table [parameters]")
    try:
        time_limit_s = None if time_limit is None else parse_duration(time_limit)
    except ValueError as error:
        raise failure(f"--time-limit {error}") from None
    placed = placing.place_or_refuse(**where)
    os.environ.update(placed.variables)
    try:
        with script.output_aside(as_json):
            made = _made(
                function, space, sampler=sampler, scheduler=scheduler, metric=list(metric), mode=_modes(mode),
                trials=trials, max_concurrent=max_concurrent, name=name, project=project, seed=seed,
                time_limit_s=time_limit_s, resume=not begin_anew, resources=default_resources(placed.settings),
            )  # fmt: skip
            results = made.run()
    except (NotAProgram, SearchInvalid, OSError) as error:
        raise failure(str(error)) from None
    except (SearchFailed, RopewalkError) as error:
        if above := remote_text(error.__cause__):  # escaped already
            click.echo(above.strip("\n"), err=True)
        raise failure(str(error), 1) from None
    click.echo(to_json(results.to_records(), indent=None) if as_json else str(results))
    if plot is not None:
        try:
            results.plot(plot)
        except (OSError, ValueError, ImportError) as error:  # the results are there, and can be drawn again
            raise failure(f"the search is complete, but cannot be drawn to {plot}: {error}", 1) from None


def _made(
    function: str, space: Path | None, *, sampler: str, scheduler: str, resources: Resources, **settings: Any
) -> Any:
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
        None if space is None else SearchSpace.from_toml(space),
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


def _modes(given: Sequence[str]) -> Any:
    return given[0] if len(given) == 1 else list(given) or "max"
