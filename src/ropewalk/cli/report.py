"""`ropewalk report`: one HTML file that shows what runs, or a run of the store, for any browser, without a server."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.choosing import NotChosen, choose, running_launchers, telling_failures
from ropewalk.cli.command_line import PanelCommand, Seconds, argument, failure
from ropewalk.control.launchers import Launcher
from ropewalk.errors import FileNotTrusted, RunNotFound, StoreError, StoreMissing
from ropewalk.escaping import escaped
from ropewalk.transport.kernel import LONGEST_WAIT_S

if TYPE_CHECKING:  # pictures and stores are imported where they are needed
    from ropewalk.page.report_document import ReportDocument

_MOST_LOOKS = 5
"""Looks at a launcher that is slow to answer."""


@click.command(cls=PanelCommand)
@argument("what", help="Name or pid of what runs; or name of a run or search, or its id or the start of it.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path),
    help="File to write, or - to print it (default: NAME-report.html in this folder).",
)  # fmt: skip
@click.option(
    "--record",
    "record_s",
    type=Seconds(),
    default=2.0,
    metavar="SECONDS",
    help="Record for this time, or until Ctrl-C.",
)
@click.option("--store", metavar="STORE", help="Path of a store, or its URL (default: ROPEWALK_STORE).")
@click.option("--json", "as_json", is_flag=True, help="Print the path of the file as JSON.")
def report(what: str, output: Path | None, record_s: float, store: str | None, as_json: bool) -> None:
    """Write one HTML file with the pictures of the page, which needs neither a server nor a network.

    Exit code 2 if nothing has that name, 1 if the file cannot be written.
    """
    from ropewalk.page.echarts_script import EChartsUnknown, echarts_script
    from ropewalk.page.report import WrittenReport
    from ropewalk.page.report_document import report_html

    try:
        echarts = echarts_script()
    except (ModuleNotFoundError, EChartsUnknown) as error:
        raise failure(str(error), 1) from None
    with telling_failures():
        try:
            launcher, missing = choose(what, running_launchers()), ""
        except NotChosen as error:
            launcher, missing = None, str(error)
        document = _of_launcher(launcher, record_s) if launcher else _of_run(what, store, missing)
        file = output or Path(f"{_file_name(document.name)}-report.html")
        if str(file) == "-":
            for part in report_html(document, echarts):
                click.echo(part.encode("utf-8", "replace"), nl=False)
            return
        try:
            WrittenReport(file, echarts, lambda: document, None).write()
        except OSError as error:
            raise failure(f"{file} cannot be written: {error}", 1) from None
    click.echo(json.dumps({"file": str(file)}) if as_json else escaped(str(file)))


def _of_launcher(launcher: Launcher, record_s: float) -> ReportDocument:
    """Return the report of what runs, having recorded it."""
    from ropewalk.page.report import ViewRecorder
    from ropewalk.page.source import Launchers

    with Launchers(lambda: [launcher]) as launchers:
        recorder = ViewRecorder(launchers, launcher.id)
        for _ in range(_MOST_LOOKS):
            if recorder.look():
                break
        else:
            raise failure(f"{launcher} does not answer", 1)
        recorder.start()
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the recording, and not the report
            _sleep(record_s)
        recorder.stop()
        return recorder.document()


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(min(left_s, LONGEST_WAIT_S))


def _of_run(ref: str, store: str | None, missing: str) -> ReportDocument:
    """Return the report of a run of the store; if there is none, say what else was not found."""
    try:
        from ropewalk.page.run_report import run_document

        return run_document(ref, store)
    except (RunNotFound, StoreMissing) as error:
        raise failure(f"{missing}\n{error}") from None
    except ModuleNotFoundError as error:
        raise failure(f"{missing}\nruns of a store need {error.name}: pip install 'ropewalk[tracking]'") from None
    except (StoreError, FileNotTrusted) as error:
        raise failure(str(error), 1) from None


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("._-")[:80] or "ropewalk"
