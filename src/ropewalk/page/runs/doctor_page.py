"""`/doctor`: what `ropewalk doctor` finds on the host of the page, the settings and their origins among it.

It is asked in a process of its own: it starts a pool, and what it finds is what a user finds who calls it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from nicegui import run, ui
from starlette.requests import Request

from ropewalk.escaping import escaped_lines
from ropewalk.page.frame import Panel, Visit
from ropewalk.page.runs.layout import plain_table
from ropewalk.page.runs.notices import runs_frame

_COMMAND = (sys.executable, "-P", "-m", "ropewalk", "doctor", "--json")
_TIMEOUT_S = 120.0
_KEPT_S = 600.0
"""A report that is not older is shown at once."""
_ORDER = ("failed", "warning", "ok", "absent")
_OWN_VARIABLES = ("NICEGUI_STORAGE_PATH",)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What the doctor found.

    Attributes:
        at: Unix time in seconds.
        findings: each with "subject", "what", "state", "value" and "advice".
        problem: why there are none.
    """

    at: float
    findings: Sequence[dict[str, str]]
    problem: str = ""


def examined(command: Sequence[str] = _COMMAND) -> DoctorReport:
    """Ask the doctor; takes some seconds."""
    environment = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL,
            env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return DoctorReport(time.time(), (), f"ropewalk doctor cannot be run: {error}")
    try:
        report: Any = json.loads(asked.stdout)
        found = [{str(k): str(v) for k, v in one.items()} for one in cast("list[dict[str, Any]]", report["findings"])]
        return DoctorReport(time.time(), found)
    except (ValueError, KeyError, TypeError):
        return DoctorReport(time.time(), (), f"ropewalk doctor has failed:\n{asked.stderr[-2000:]}")


def add_doctor_page() -> None:
    """Serve `/doctor`."""
    kept: list[DoctorReport] = []
    one_at_a_time = asyncio.Lock()

    @ui.page("/doctor")
    async def doctor(request: Request) -> None:  # pyright: ignore[reportUnusedFunction]
        with runs_frame(request, "Doctor") as visit:
            with ui.row().classes("items-center"):
                words = ui.label().classes("muted")
                again = ui.button("Examine again", icon="refresh").props("flat dense no-caps")
                again.set_visibility(visit.may_act)
            place = ui.column().classes("w-full")

            async def show(*, is_new: bool) -> None:
                words.set_text("This host is being examined; that takes some seconds.")
                again.disable()
                async with one_at_a_time:
                    if (is_new and visit.may_act) or not kept or time.time() - kept[-1].at > _KEPT_S:
                        report = await run.io_bound(examined)
                        if report is None:  # the page is ending
                            return
                        kept[:] = [report]
                again.enable()
                words.set_text(f"Examined at {visit.moment(kept[-1].at)}.")
                place.clear()
                with place:
                    _draw(kept[-1], visit)

            again.on_click(lambda: show(is_new=True))
            ui.timer(0.05, lambda: show(is_new=False), once=True)


def _draw(report: DoctorReport, visit: Visit) -> None:
    if report.problem:
        ui.label(escaped_lines(report.problem)).classes("mono")
        return
    counts = {state: sum(one["state"] == state for one in report.findings) for state in _ORDER}
    ui.label(", ".join(f"{num} {state}" for state, num in counts.items())).classes("text-bold")
    troubles = [one for one in report.findings if one["state"] in ("failed", "warning")]
    if troubles:
        with Panel("What to look at"):
            _table(troubles, visit)
    subjects = dict.fromkeys(one["subject"] for one in report.findings)
    with ui.element("div").classes("w-full").style("columns: 520px; column-gap: 10px"):
        for subject in sorted(subjects, key=lambda subject: subject == "settings"):
            with Panel(subject.capitalize()).style("break-inside: avoid; margin-bottom: 10px"):
                _table([one for one in report.findings if one["subject"] == subject], visit)


def _table(findings: Sequence[dict[str, str]], visit: Visit) -> None:
    style = visit.style
    colors = {"failed": style.bad, "warning": style.warn, "ok": style.good}

    def state(name: str) -> Any:
        return lambda: ui.label(name).classes("mono").style(f"color: {colors.get(name, style.muted)}") and None

    def value(one: dict[str, str]) -> Any:
        def draw() -> None:
            ui.label(escaped_lines(one["value"])).classes("mono").style("overflow-wrap: anywhere")
            if one["advice"]:
                advice = ui.label(escaped_lines(f"→ {one['advice']}")).classes("mono")
                advice.style(f"color: {colors.get(one['state'], style.muted)}; overflow-wrap: anywhere")

        return draw

    plain_table(
        "findings", ("state", "what", ""), [(state(one["state"]), one["what"], value(one)) for one in findings], grow=2
    )


__all__ = ["DoctorReport", "add_doctor_page", "examined"]
