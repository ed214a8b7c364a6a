"""`ropewalk doctor`: check whether this machine can run Ropewalk, and if not, say what to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

import click
from click.exceptions import Exit
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ropewalk import settings
from ropewalk.cli import placing
from ropewalk.cli.command_line import PanelCommand, failure
from ropewalk.cli.findings import PROBES, Finding, Severity, engine_findings, examine
from ropewalk.cli.leftovers import LeftFolder, LeftRun, engine_of, engine_words, left_folders, left_runs, usual_engines
from ropewalk.engines.options import words_to_options
from ropewalk.errors import EngineError, RopewalkError, SettingsError
from ropewalk.escaping import escaped, escaped_lines
from ropewalk.processes.launcher_record import LauncherState

_STYLES = {Severity.OK: "green", Severity.ABSENT: "dim", Severity.WARNING: "yellow", Severity.FAILED: "bold red"}


@click.command(cls=PanelCommand)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--engine", metavar="NAME", help="Check only what this engine needs.")
@placing.engine_options
@click.option("--leftovers", is_flag=True, help="List jobs and folders of launchers that are gone.")
@click.option("--remove", is_flag=True, help="With --leftovers: end and remove what is certainly left over.")
def doctor(as_json: bool, engine: str | None, option: tuple[str, ...], leftovers: bool, remove: bool) -> None:
    """Check this machine: versions, limits, folders, kernel, network, settings and a real round trip.

    With --engine it checks a cluster instead. Exit code 1 if a row failed, or if something is left over. With
    --leftovers, an engine that cannot be used here is named and skipped, unless --engine names it. The report holds no
    secrets.
    """
    try:
        options = words_to_options(option)
    except SettingsError as error:
        raise failure(str(error)) from None
    if leftovers:
        if options and engine is None:
            raise failure("-o with --leftovers needs --engine, which says whose options these are")
        _report_leftovers(engine, options, remove=remove, as_json=as_json)
        return
    probes = PROBES
    if engine is not None or option:
        try:
            here = settings.current(engine=engine, engine_options=options or None)
        except SettingsError as error:
            raise failure(str(error)) from None
        probes = {"engine": lambda: engine_findings(here)}
    console = Console(highlight=False)
    if as_json:
        findings = list(examine(probes))
        click.echo(render_json(findings))
    elif console.is_terminal:
        with console.status("examining this machine"):
            findings = list(examine(probes))
        console.print(render_table(findings))
        console.print(_verdict(findings))
    else:
        findings: list[Finding] = []
        for finding in examine(probes):
            findings.append(finding)
            click.echo(render_line(finding))
        click.echo(_verdict(findings))
    if any(finding.state is Severity.FAILED for finding in findings):
        raise Exit(1)


def _report_leftovers(engine: str | None, options: Mapping[str, object], *, remove: bool, as_json: bool) -> None:
    runs: list[LeftRun] = []
    problems: list[str] = []
    skipped: list[str] = []
    try:
        names = [engine] if engine else usual_engines()
        folders = left_folders(remove=remove)
    except SettingsError as error:
        raise failure(str(error)) from None
    for name in names:
        try:
            made = engine_of(name, options)
        except EngineError as error:  # one that was used once, and whose package is not installed any more
            where = problems if engine else skipped
            where.append(f"the engine {name!r} cannot be used here, and was not asked: {error}")
            continue
        except RopewalkError as error:
            problems.append(f"the engine {name!r} was not asked: {error}")
            continue
        try:
            runs += left_runs(name, made, options, remove=remove)
        except RopewalkError as error:
            problems.append(f"the engine {name!r} does not say which runs it has: {error}")
    if as_json:
        found = {
            "runs": [run.to_json() for run in runs], "folders": [folder.to_json() for folder in folders],
            "problems": problems, "skipped": skipped,
        }  # fmt: skip
        click.echo(json.dumps(found, indent=2))
    else:
        lines = [run.describe() for run in runs]
        lines += [folder.describe() for folder in folders]
        certain: list[LeftRun | LeftFolder] = [run for run in runs if run.launcher is LauncherState.GONE]
        certain += [folder for folder in folders if folder.is_certain]
        if any(not each.removed for each in certain):
            chosen = f" {engine_words(engine, options)}" if engine else ""
            lines.append(f"ropewalk doctor --leftovers --remove{chosen} ends and removes what is certainly left over")
        for line in lines or ["nothing was found" if skipped or problems else "nothing is left"]:
            click.echo(escaped(line))
        for problem in [*skipped, *problems]:
            click.echo(f"ropewalk doctor: {escaped_lines(problem)}", err=True)
    if problems or any(not each.removed for each in [*runs, *folders]):
        raise Exit(1)


def render_json(findings: Iterable[Finding]) -> str:
    """Return the report for programs: `{"ok": bool, "findings": [{subject, what, state, value, advice}]}`."""
    rows = [
        {"subject": f.subject, "what": f.what, "state": f.state.value, "value": f.value, "advice": f.advice}
        for f in findings
    ]
    return json.dumps({"ok": all(row["state"] != "failed" for row in rows), "findings": rows}, indent=2)


def render_line(finding: Finding) -> str:
    """Return one finding as a line, for logs."""
    value = " ".join(finding.value.split())
    advice = f" -- {finding.advice}" if finding.advice else ""
    return escaped(f"{finding.state.value:<8} {finding.subject:<9} {finding.what:<22} {value}{advice}")


def render_table(findings: Iterable[Finding]) -> Table:
    """Return the report for a terminal, grouped by subject."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    subject = ""
    for finding in findings:
        if subject and finding.subject != subject:
            table.add_row()
        shown = Text(escaped_lines(finding.value))
        if finding.advice:
            shown.append(
                f"\n→ {escaped_lines(finding.advice)}", style="yellow" if finding.state is Severity.WARNING else "red"
            )
        table.add_row(
            Text(escaped(finding.subject)) if finding.subject != subject else "",
            Text(finding.state.value, style=_STYLES[finding.state]),
            Text(escaped(finding.what)),
            shown,
        )
        subject = finding.subject
    return table


def _verdict(findings: Iterable[Finding]) -> str:
    counts = Counter(finding.state for finding in findings)
    return ", ".join(f"{counts[state]} {state.value}" for state in Severity)
