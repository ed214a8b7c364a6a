"""`ropewalk runs`: list, show, compare, export, label, archive and delete the runs of a store.

ropewalk runs list --project digits --metric loss
ropewalk runs show brisk-otter
ropewalk runs export brisk-otter --format csv --output curves.csv
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, RenderableType

from ropewalk.atomic_files import StagedFile
from ropewalk.cli.command_line import PanelGroup, argument, failure
from ropewalk.cli.runs_data import (
    csv_lines,
    json_lines,
    points_of,
    report_json,
    run_json,
    to_json,
)
from ropewalk.cli.runs_life import COMMANDS as LIFE
from ropewalk.cli.runs_logs import logs
from ropewalk.cli.runs_options import json_option, opened, run_argument, runs_argument, store_option
from ropewalk.cli.runs_search import results_of, search_parts
from ropewalk.cli.runs_tables import (
    SPARK_WIDTH,
    as_table,
    as_text,
    compare_rows,
    list_rows,
    show_table,
    show_text,
)
from ropewalk.escaping import escaped
from ropewalk.progress_stream import is_terminal
from ropewalk.quantities import counted
from ropewalk.tracking.records import SYSTEM, LabelsAre, NoteAdded, RunRecord
from ropewalk.tracking.run_reports import Comparison, RunReport

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import RunRow, RunStore


@click.group(cls=PanelGroup, no_args_is_help=True)
def runs() -> None:
    """List, show, compare, export, label, archive and delete runs; pause, continue, stop, fork and rerun them."""


runs.add_command(logs)
for _command in LIFE:
    runs.add_command(_command)

_FORMATS = ("csv", "jsonl", "json")


@runs.command("list")
@click.option("--project", "-p", metavar="NAME", help="Only runs of this project.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only runs in this state; may be repeated.")
@click.option("--kind", metavar="KIND", help="Only runs of this kind, such as trial.")
@click.option("--parent", metavar="RUN", help="Only runs that belong to this one.")
@click.option("--label", "labels", multiple=True, metavar="LABEL", help="Only runs with this label; may be repeated.")
@click.option("--user", metavar="NAME", help="Only runs that this user began.")
@click.option("--text", metavar="TEXT", help="Only runs with this text in name, settings or cause.")
@click.option(
    "--metric", "-m", multiple=True, metavar="NAME", help="Add a column with its last value; with a group: GROUP/NAME."
)
@click.option(
    "--order",
    default="-created",
    metavar="ORDER",
    help="created, changed, name, project, state, or a metric that --metric names; - reverses.",
)
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), metavar="N", help="Maximum number of runs: 50, and with --json all."
)
@click.option("--archived", is_flag=True, help="Only archived runs.")
@click.option("--all", "everything", is_flag=True, help="All runs, including trials of searches and archived ones.")
@json_option
@store_option
def list_runs(
    project: str | None,
    states: tuple[str, ...],
    kind: str | None,
    parent: str | None,
    labels: tuple[str, ...],
    user: str | None,
    text: str | None,
    metric: tuple[str, ...],
    order: str,
    limit: int | None,
    archived: bool,
    everything: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """List runs, the newest first; trials of a search only on request."""
    by_metric = order.removeprefix("-") if order.removeprefix("-") in metric else ""
    if limit is None and not as_json:
        limit = 50
    try:
        with opened(store) as runs:
            found = runs.runs(
                project=project,
                states=states or None,
                kind=kind,
                parent=None if parent is None else runs.run(parent).id,
                labels=labels,
                user=user,
                text=text,
                archived=None if everything else archived,
                order="-created" if by_metric else order,
            )
            trials = 0
            if not everything and kind is None and parent is None:
                trials = sum(run.kind == "trial" for run in found)
                found = [run for run in found if run.kind != "trial"]
            num = len(found)
            metrics = _last_values(runs, found if by_metric else found[:limit], metric)
            if by_metric:
                found = _by_value(found, {run: of.get(by_metric) for run, of in metrics.items()}, order.startswith("-"))
            found = found[:limit]
            users = runs.users(found) if "://" in runs.where else {}
    except ValueError as error:  # an unknown state or order
        hint = "; by a metric: --metric NAME --order NAME" if "ordered by" in str(error) else ""
        raise failure(f"{error}{hint}") from None
    if as_json:
        rows = [run_json(run, metrics[run.id]) for run in found]
        click.echo(to_json([row | {"user": users[row["id"]]} for row in rows] if users else rows))
    elif found:
        shown = list_rows(found, metrics, metric, time.time(), users)
        _print(as_text(shown), as_table(shown))
    more = [f"{num - len(found)} more: --limit {num}"] if num > len(found) else []
    more += [f"{counted(trials, 'trial')} not shown: --all, --kind trial or --parent SEARCH"] if trials else []
    if more or not (found or as_json):
        click.echo("; ".join(more) or "no run is like that", err=True)


@runs.command()
@run_argument
@json_option
@store_option
def show(run: str, as_json: bool, store: str | None) -> None:
    """Show all that is known of a run: settings, code, curves, attempts with their causes, checkpoints, events.

    Of a search also its best trials, and which hyperparameters matter.
    """
    with opened(store) as runs:
        row = runs.run(run)
        report = RunReport.of(runs, row, 0 if as_json else 4 * SPARK_WIDTH)
        results = results_of(runs, row)
    if as_json:
        of_search = {} if results is None else {"importance": results.importance()}
        click.echo(to_json({**report_json(report), **of_search}))
    else:
        more = [] if results is None else search_parts(results)
        _print(show_text(report, time.time(), more), show_table(report, time.time(), more))


@runs.command()
@runs_argument
@click.option("--group", metavar="NAME", help="Only metrics of this group (default: all but system).")
@click.option("--all", "everything", is_flag=True, help="Also settings that do not differ.")
@json_option
@store_option
def compare(refs: tuple[str, ...], group: str | None, everything: bool, as_json: bool, store: str | None) -> None:
    """Compare runs: the settings in which they differ, and the last values of their metrics."""
    with opened(store) as opened_store:
        found = _found(opened_store, refs)
        ids = [run.id for run in found]
        last = _last_values(opened_store, found) if group is None else opened_store.last_values(ids, group)
    comparison = Comparison.of(found, last, everything=everything)
    if as_json:
        click.echo(to_json(comparison.to_json()))
    else:
        rows = compare_rows(comparison)
        _print(as_text(rows), as_table(rows))


@runs.command()
@runs_argument
@click.option("--format", "form", metavar="FORMAT", help="csv (default) or jsonl (points), or json (all but points).")
@click.option("--group", metavar="NAME", help="Only metrics of this group.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="File to write (default, and -: print).")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@store_option
def export(
    refs: tuple[str, ...], form: str | None, group: str | None, output: Path | None, as_json: bool, store: str | None
) -> None:
    """Export the metrics of runs, one line for each point, or everything else that is known about them."""
    if as_json and form not in (None, "json"):
        raise failure(f"--json is the same as --format json, and --format {form} was given, too; leave one of them out")
    form = "json" if as_json else form or "csv"
    if form not in _FORMATS:
        raise failure(f"--format is one of {', '.join(_FORMATS)}, not {form!r}")
    with opened(store) as opened_store:
        found = _found(opened_store, refs)
        if form == "json":
            lines: Iterable[str] = [to_json([report_json(RunReport.of(opened_store, run)) for run in found])]
        else:
            points = points_of(opened_store, found, group)
            lines = csv_lines(points) if form == "csv" else json_lines(points)
        _write(lines, output)


@runs.command()
@runs_argument
@click.option("--undo", is_flag=True, help="Show them in lists again.")
@json_option
@store_option
def archive(refs: tuple[str, ...], undo: bool, as_json: bool, store: str | None) -> None:
    """Hide runs, and those that belong to them, from lists; nothing is deleted."""
    with opened(store) as opened_store:
        found = _found(opened_store, refs)
        for run in found:
            (opened_store.unarchive if undo else opened_store.archive)(run.id)
    _tell("unarchived" if undo else "archived", [run.id for run in found], as_json)


@runs.command()
@argument("label", help="The label.")
@runs_argument
@click.option("--remove", is_flag=True, help="Remove it.")
@json_option
@store_option
def label(label: str, refs: tuple[str, ...], remove: bool, as_json: bool, store: str | None) -> None:
    """Add a label to runs, by which they are found, or remove it."""
    given = LabelsAre([], [label]) if remove else LabelsAre([label])
    with opened(store) as opened_store:
        found = _found(opened_store, refs)
        opened_store.apply([RunRecord(run.id, given) for run in found])
    _tell("no longer labelled" if remove else "labelled", [run.id for run in found], as_json)


@runs.command()
@run_argument
@argument("text", help="The remark.")
@json_option
@store_option
def note(run: str, text: str, as_json: bool, store: str | None) -> None:
    """Add a remark to a run, which its report and its page show."""
    with opened(store) as opened_store:
        row = opened_store.run(run)
        opened_store.apply([RunRecord(row.id, NoteAdded(text, time.time()))])
    _tell("noted", [row.id], as_json)


@runs.command()
@runs_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@store_option
def delete(refs: tuple[str, ...], yes: bool, as_json: bool, store: str | None) -> None:
    """Delete runs with their artifacts and checkpoints, and runs that belong to them, such as trials of a search."""
    with opened(store) as opened_store:
        found = _found(opened_store, refs)
        if not yes:
            if not _can_ask():
                raise failure("without a terminal to ask on, say --yes; deleted runs cannot be brought back")
            for run in found:
                num = len(opened_store.children(run.id))
                more = f", and {counted(num, 'run')} that belong to it" if num else ""
                click.echo(escaped(f"{run.id}  {run.name}  {run.state}{more}"), err=True)
            click.confirm(f"delete {counted(len(found), 'run')} for good?", abort=True, err=True)
        deleted: list[str] = []
        for run in found:
            if run.id not in deleted:  # it may belong to one that was deleted just now
                deleted += opened_store.delete(run.id)
    _tell("deleted", deleted, as_json)


# --- what they have in common -----------------------------------------------------------------------------------------


def _found(store: RunStore, refs: Sequence[str]) -> list[RunRow]:
    """Return the runs that the arguments name, each one once; nothing is done if one of them is unknown."""
    return list({run.id: run for run in map(store.run, refs)}.values())


def _by_value(runs: Sequence[RunRow], values: Mapping[str, float | None], is_falling: bool) -> list[RunRow]:
    """Return runs in the order of a metric's last values; those that have no number come last."""

    def place(run: RunRow) -> tuple[bool, float]:
        value = values.get(run.id)
        if value is None or math.isnan(value):
            return True, 0.0
        return False, -value if is_falling else value

    return sorted(runs, key=place)


def _last_values(store: RunStore, runs: Sequence[RunRow], names: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """Return the last values of the metrics of runs, as NAME or GROUP/NAME; those of the machine only by name."""
    found = store.last_values([run.id for run in runs], None)
    return {
        run: {name: value for name, value in own.items() if name in names or not name.startswith(f"{SYSTEM}/")}
        for run, own in found.items()
    }


def _can_ask() -> bool:
    return is_terminal(sys.stdin)


def _print(text: str, table: RenderableType) -> None:
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
    else:
        click.echo(text)


def _tell(what: str, runs: list[str], as_json: bool) -> None:
    click.echo(to_json({what: runs}) if as_json else escaped(f"{what}: {', '.join(runs)}"))


def _write(lines: Iterable[str], output: Path | None) -> None:
    """Write lines to a file, whole or not at all, or print them."""
    if output is None or str(output) == "-":
        for line in lines:
            click.echo(line)
        return
    try:
        with StagedFile(output) as staged:
            for line in lines:
                staged.file.write(f"{line}\n".encode())
            staged.commit()
    except OSError as error:
        raise failure(f"{output} cannot be written: {error}", 1) from None
