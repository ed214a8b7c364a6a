"""`ropewalk doctor`: is this machine fit for Ropewalk, and if not, what to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ropewalk.cli.findings import PROBES, Finding, State, examine

_STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILED: "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check this machine: versions, limits, folders, kernel, network, settings and a real round trip.

    Exit code 1 if a row failed. The report holds no secrets.
    """
    console = Console(highlight=False)
    if as_json:
        findings = list(examine(PROBES))
        typer.echo(render_json(findings))
    elif console.is_terminal:
        with console.status("examining this machine"):
            findings = list(examine(PROBES))
        console.print(render_table(findings))
        console.print(_verdict(findings))
    else:
        findings: list[Finding] = []
        for finding in examine(PROBES):
            findings.append(finding)
            typer.echo(render_line(finding))
        typer.echo(_verdict(findings))
    if any(finding.state is State.FAILED for finding in findings):
        raise typer.Exit(1)


def render_json(findings: Iterable[Finding]) -> str:
    """The report for programs: `{"ok": bool, "findings": [{subject, what, state, value, advice}]}`."""
    rows = [
        {"subject": f.subject, "what": f.what, "state": f.state.value, "value": f.value, "advice": f.advice}
        for f in findings
    ]
    return json.dumps({"ok": all(row["state"] != "failed" for row in rows), "findings": rows}, indent=2)


def render_line(finding: Finding) -> str:
    """The report for logs: one finding in one line."""
    value = " ".join(finding.value.split())
    advice = f" -- {finding.advice}" if finding.advice else ""
    return f"{finding.state.value:<8} {finding.subject:<9} {finding.what:<22} {value}{advice}"


def render_table(findings: Iterable[Finding]) -> Table:
    """The report for a terminal, grouped by subject."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    subject = ""
    for finding in findings:
        if subject and finding.subject != subject:
            table.add_row()
        shown = Text(finding.value)
        if finding.advice:
            shown.append(f"\n→ {finding.advice}", style="yellow" if finding.state is State.WARNING else "red")
        table.add_row(
            finding.subject if finding.subject != subject else "",
            Text(finding.state.value, style=_STYLES[finding.state]),
            finding.what,
            shown,
        )
        subject = finding.subject
    return table


def _verdict(findings: Iterable[Finding]) -> str:
    counts = Counter(finding.state for finding in findings)
    return ", ".join(f"{counts[state]} {state.value}" for state in State)
