"""`ropewalk plan`: cut a model into stages for a set of devices, and show the predicted result.

ropewalk plan train.py:make_model --devices 4 --memory 16GB
ropewalk plan --profile resnet50.txt --devices 4x4 --bandwidth 12e9,1.25e9 --json
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
from click.exceptions import Exit
from rich.console import Console

from ropewalk import pipeline
from ropewalk.cli import script
from ropewalk.cli.command_line import PanelCommand, argument, failure
from ropewalk.errors import NoPlanFits, ProfileInvalid, RopewalkError
from ropewalk.escaping import escaped_lines
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.profiles import Profile
from ropewalk.program.script_code import NotAProgram
from ropewalk.quantities import parse_memory

_RECOMPUTE = {"auto": None, "always": True, "never": False}
"""Whether stages run their forward again before the backward, by the value of `--recompute`."""
_PATH = click.Path(path_type=Path)


@click.command(cls=PanelCommand)
@argument(
    "model", required=False, help="FILE.py:FUNCTION that returns (model or its graph, inputs of one micro-batch)."
)
@click.option("--profile", type=_PATH, help="A profile instead of a model: Ropewalk's JSON or PipeDream's graph.txt.")
@click.option(
    "--devices",
    default="",
    metavar="N",
    show_default=False,
    help="Number of devices, from the inside out: 4, 4x8, 4x8@12GBps,1.25GBps, or a TOML file.",
)
@click.option(
    "--bandwidth",
    metavar="SPEED",
    help="Bytes per second of each level: 12e9,1.25e9 or 12GBps,10Gbps (default: 1 GB/s).",
)
@click.option("--memory", metavar="SIZE", help="Memory of each device, such as 16GB (default: unlimited).")
@click.option(
    "--schedule", metavar="NAME", help="one_f_one_b, gpipe, pipedream, ... (default: what suits the partitioner)."
)
@click.option(
    "--micro-batches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Micro-batches in one step (default: 4 per device, or 1 for pipedream).",
)
@click.option(
    "--partitioner", metavar="NAME", help="exact, balanced, pipedream or fixed (default: exact; with --cut, fixed)."
)
@click.option("--num-stages", type=click.IntRange(min=1), metavar="N", help="Number of stages (default: the fastest).")
@click.option("--cut", multiple=True, metavar="OPERATOR", help="Cut after this operator or module; may be repeated.")
@click.option(
    "--recompute", type=click.Choice(list(_RECOMPUTE)), default="auto", help="Whether stages compute activations again."
)
@click.option(
    "--optimizer-slots",
    type=click.IntRange(min=0),
    default=2,
    metavar="N",
    help="Copies of the weights that the optimizer keeps: Adam 2, momentum 1, SGD 0.",
)
@click.option(
    "--cost-model", type=click.Choice(["repository", "paper"]), help="Cost model of the partitioner pipedream."
)
@click.option("--free-transfers", is_flag=True, help="For pipedream: transfers between stages cost nothing.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=5, metavar="N", help="Number of times the model is measured."
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Processes that compute during the measurement, for stages that share this host's cores.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan and its numbers as JSON.")
@click.option("--svg", type=_PATH, help="Write a picture of the plan.")
@click.option("--dot", type=_PATH, help="Write the graph of operators, for Graphviz.")
@click.option("--save", type=_PATH, help="Write the plan, for Plan.from_json and the trainer.")
@click.option("--save-profile", type=_PATH, help="Write the profile of the model as JSON.")
def plan(
    model: str | None,
    profile: Path | None,
    devices: str,
    bandwidth: str | None,
    memory: str | None,
    schedule: str | None,
    micro_batches: int | None,
    partitioner: str | None,
    num_stages: int | None,
    cut: tuple[str, ...],
    recompute: str,
    optimizer_slots: int,
    cost_model: str | None,
    free_transfers: bool,
    repeats: int,
    concurrency: int,
    as_json: bool,
    svg: Path | None,
    dot: Path | None,
    save: Path | None,
    save_profile: Path | None,
) -> None:
    """Cut a model into pipeline stages for a set of devices, and show the predicted result.

    Exit code 1 if no plan fits, 2 for wrong usage.
    """
    if (model is None) == (profile is None):
        raise failure("name either a model as FILE.py:FUNCTION or a profile with --profile")
    if not devices:
        raise failure("say how many devices there are: --devices 4, or 4x8 for 4 per server and 8 servers")
    console = Console(stderr=True, highlight=False)
    memory_bytes = _memory_bytes(memory)
    with _failures():
        searched = _partitioner(partitioner, cost_model, free_transfers)
        measured = _read_profile(profile) if profile else _measure(str(model), repeats, concurrency, console, as_json)
        if save_profile:
            measured.save(save_profile)
        with console.status("planning"):
            made = pipeline.plan(
                measured,
                devices=devices,
                bandwidth=bandwidth.split(",") if bandwidth else None,
                memory=memory_bytes,
                schedule=schedule,
                micro_batches=micro_batches,
                partitioner=searched,
                num_stages=num_stages,
                recompute=_RECOMPUTE[recompute],
                optimizer_slots=optimizer_slots,
                cuts=cut or None,
            )
        _write(made, measured, svg=svg, dot=dot, save=save)
    click.echo(json.dumps(to_json(made), indent=2) if as_json else escaped_lines(str(made)))


def _write(made: Plan, measured: Profile, *, svg: Path | None, dot: Path | None, save: Path | None) -> None:
    """Write a plan to the files that were asked for, each in its form."""
    if svg:
        svg.write_text(made.svg(), encoding="utf-8")
    if dot:
        dot.write_text(made.dot(measured), encoding="utf-8")
    if save:
        save.write_bytes(made.to_json())


def _memory_bytes(memory: str | None) -> int | None:
    try:
        return None if memory is None else parse_memory(memory)
    except ValueError as error:
        raise failure(f"--memory: {error}") from None


@contextlib.contextmanager
def _failures() -> Generator[None]:
    """Say in one line why there is no plan: exit code 1 if none fits, 2 for wrong usage."""
    try:
        yield
    except NoPlanFits as error:
        raise failure(str(error), 1) from None
    except (NotAProgram, RopewalkError, OSError) as error:
        raise failure(str(error)) from None
    except ModuleNotFoundError as error:
        if error.name not in pipeline.EXTRAS:
            raise
        raise failure(str(error)) from None


def to_json(made: Plan) -> dict[str, Any]:
    """Return a plan and its numbers for programs: `stages` with `nodes` and `replicas`, in seconds and bytes."""
    prediction = made.prediction
    assert prediction is not None, "plan() gives one"
    facts = msgspec.to_builtins(prediction)
    predicted = facts.pop("stages")
    return {
        **facts,
        "gap": prediction.gap,
        "schedule": made.schedule,
        "micro_batches": made.micro_batches,
        "stages": [
            {
                "id": stage.id,
                "nodes": list(stage.operators),
                "replicas": stage.replicas,
                "devices": list(stage.devices),
                "recompute": stage.recompute,
                **more,
            }
            for stage, more in zip(made.stages, predicted, strict=True)
        ],
        "edges": msgspec.to_builtins(made.edges),
        "tied": msgspec.to_builtins(made.tied),
    }


def _read_profile(path: Path) -> Profile:
    try:
        return _profile_in(path.read_text(encoding="utf-8"), path)
    except (ProfileInvalid, UnicodeDecodeError) as error:
        raise ProfileInvalid(f"{path}: {error}") from error


def _profile_in(text: str, path: Path) -> Profile:
    if text.lstrip().startswith("{") and '"stages"' in text and '"operators"' not in text.partition('"stages"')[0]:
        raise ProfileInvalid(f"{path} is a plan; --profile takes a profile, which --save-profile writes")
    if text.lstrip().startswith("{"):
        return Profile.from_json(text)
    return replace(pipeline.read_graph_text(text), model=path.stem)


def _partitioner(name: str | None, cost_model: str | None, free_transfers: bool) -> Any:
    if name != "pipedream":
        if cost_model or free_transfers:
            raise failure(
                f"--cost-model and --free-transfers belong to --partitioner pipedream, not to {name or 'exact'}",
            )
        return name
    options: dict[str, Any] = {"cost_model": cost_model} if cost_model else {}
    return pipeline.make_partitioner(name, free_transfers=free_transfers, **options)


def _measure(named: str, repeats: int, concurrency: int, console: Console, as_json: bool) -> Profile:
    try:
        with script.output_aside(as_json):
            made = script.function_of(named, "a model")()
    except NotAProgram:
        raise
    except Exception as error:  # the user's own error, shown as Python would
        script.show_error("plan", error)
        raise Exit(1) from None
    try:
        model, example_inputs = made
    except (TypeError, ValueError):
        raise NotAProgram(
            f"{named} must return (model, example inputs of one micro-batch), not {type(made).__name__}"
        ) from None
    with console.status(f"measuring {named}"), script.output_aside(as_json):
        return pipeline.profile(model, example_inputs, repeats=repeats, concurrency=concurrency)
