"""The header of a run's page: its state, why it ended, where it ran, its command, and what can be done with it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import quote

from nicegui import ui

from ropewalk.escaping import escaped, escaped_lines
from ropewalk.page.frame import Visit
from ropewalk.page.runs.run_actions import RunAction
from ropewalk.page.style import state_color
from ropewalk.quantities import counted, shown_duration
from ropewalk.tracking.checkpoints import shown_step
from ropewalk.tracking.relaunch_commands import settings_of
from ropewalk.tracking.run_reports import RunReport, flattened
from ropewalk.tracking.store.rows import LOST, RunRow

Act = Callable[[RunAction], Awaitable[None]]
_WORDS = 'flat dense no-caps size="13px"'
_SURE = {
    "kill": "Its process ends at once, with SIGKILL. What it has written is kept.",
    "delete": "The run, the runs that belong to it, their artifacts and checkpoints are deleted for good.",
}


class RunHeader:
    """The header of a run's page. Make it where it stands, and call `show` when the run may have changed.

    Args:
        report: all that is known of the run.
        visit: for its colours and its clock, and whether the visitor may act.
        act: carries out an action.
    """

    def __init__(self, report: RunReport, visit: Visit, act: Act) -> None:
        self._report, self._visit, self._act = report, visit, act
        self._drawn: object = None
        self._elapsed: ui.label | None = None
        self._place = ui.column().classes("w-full").style("gap: 2px")
        self.show(report)

    def show(self, report: RunReport) -> None:
        """Show a report; what has not changed stays, so that a click is not lost while a run goes on."""
        self._report, run = report, report.run
        shown = (run.state, run.why, run.labels, run.archived, run.owner, run.changed, len(report.attempts))
        if shown != self._drawn:
            self._drawn = shown
            self._place.clear()
            with self._place:
                self._elapsed = _draw(report, self._visit, lambda: self._report, self._act)
        if self._elapsed is not None:
            lasted = shown_duration(run.lasted_s(time.time()))
            self._elapsed.set_text(f"started {self._visit.moment(run.created)} · {lasted}")


def _draw(report: RunReport, visit: Visit, current: Callable[[], RunReport], act: Act) -> ui.label:
    """Draw the header, and return the label of the elapsed time."""
    run = report.run
    color = state_color(run.state, visit.style)
    with ui.row().classes("items-center w-full q-gutter-x-sm"):
        ui.icon("circle", size="12px").style(f"color:{color}")
        ui.label(escaped(run.name)).classes("text-h6").style("line-height: 1.3; overflow-wrap: anywhere")
        ui.label(run.state + (", archived" if run.archived else "")).style(f"color:{color}").classes("text-bold")
        for label in run.labels:
            ui.label(escaped(label)).classes("panel q-px-sm text-caption")
        ui.space()
        if visit.may_act:
            with ui.row().classes("no-wrap tools").style("gap: 4px"):
                _buttons(run, current, act)
    with ui.row().classes("w-full muted q-gutter-x-md").style("row-gap: 0"):
        ui.label(f"{escaped(run.project)} · {escaped(run.kind)} · {escaped(run.id)}")
        times = ui.label()
        if run.owner:
            ui.label(f"process {run.owner.pid} on {escaped(run.owner.host)}")
        ui.label(counted(max(1, len(report.attempts)), "attempt"))
        if run.parent:
            with ui.row().classes("q-gutter-x-xs"):
                is_fork = run.parent_step is not None
                ui.label(f"forked at step {shown_step(run.parent_step or 0.0)} from" if is_fork else "belongs to")
                place = "runs" if is_fork else "search" if run.kind == "trial" else "runs"
                ui.link(escaped(run.parent), f"/{place}/{quote(run.parent, safe='')}")
    _code(report)
    if run.why:
        color = visit.style.bad if run.state in ("failed", LOST) else visit.style.text
        ui.label(escaped_lines(run.why.strip())).classes("mono panel q-px-sm q-py-xs w-full why").style(
            f"color:{color}"
        )
    return times


def _code(report: RunReport) -> None:
    facts = report.facts
    git: dict[str, Any] = cast("dict[str, Any]", facts.get("git")) if isinstance(facts.get("git"), dict) else {}
    argv: list[str] = [str(one) for one in cast("list[Any]", facts.get("argv") or [])]
    if not git.get("commit") and not argv:
        return
    with ui.row().classes("w-full q-gutter-x-md").style("row-gap: 0"):
        if git.get("commit"):
            changed = " + uncommitted changes" if git.get("diff") or git.get("untracked") else ""
            branch = f" on {git['branch']}" if git.get("branch") else ""
            ui.label(escaped(f"commit {str(git['commit'])[:12]}{branch}{changed}")).classes("mono muted")
        if argv:
            ui.label(escaped(shlex.join(argv))).classes("mono muted").style("overflow-wrap: anywhere")


# --- actions ----------------------------------------------------------------------------------------------------------


def _buttons(run: RunRow, current: Callable[[], RunReport], act: Act) -> None:
    def button(words: str, icon: str, call: Callable[[], Any], hint: str) -> None:
        ui.button(words, icon=icon, on_click=call).props(f'{_WORDS} title="{hint}"')

    if run.state == "running":
        button("Pause", "pause", lambda: act(RunAction("pause", run.id)), "writes a checkpoint and ends")
        button("Stop", "stop", lambda: act(RunAction("stop", run.id)), "ends after its current step")
        button("Kill", "dangerous", lambda: _ask(run, "kill", act), "ends its process at once")
    elif run.state == LOST:
        button("Kill", "dangerous", lambda: _ask(run, "kill", act), "ends its process at once")
    if run.state not in ("running", "done"):
        words = "goes on from its checkpoint, as a process of its own"
        button("Continue", "play_arrow", lambda: act(RunAction("continue", run.id)), words)
    button("Fork", "call_split", lambda: ask_settings(current(), "fork", None, act), "a new run from a checkpoint")
    button("Rerun", "replay", lambda: ask_settings(current(), "rerun", None, act), "a new run from the beginning")
    name = "unarchive" if run.archived else "archive"
    button(name.capitalize(), name, lambda: act(RunAction(name, run.id)), "in or out of lists; nothing is deleted")
    if run.state != "running":
        button("Delete", "delete", lambda: _ask(run, "delete", act), "for good")


async def _ask(run: RunRow, name: str, act: Act) -> None:
    with ui.dialog() as dialog, ui.card():
        dialog.on("hide", dialog.delete)  # else each use would leave one in the page
        ui.label(f"{name.capitalize()} {escaped(run.name)}?").classes("text-bold")
        ui.label(_SURE[name])
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat dense no-caps")
            button = ui.button(name.capitalize(), on_click=lambda: dialog.submit(True))
            button.props("dense no-caps color=negative")
    if await dialog:
        await act(RunAction(name, run.id))


def setting_lines(config: Mapping[str, Any]) -> str:
    """Return settings as a text with a line for each, as `ropewalk runs rerun --set` takes it."""
    return "\n".join(f"{key}={json.dumps(value)}" for key, value in flattened(config).items())


async def ask_settings(report: RunReport, name: str, step: float | None, act: Act) -> None:
    """Ask for the settings of a fork or a rerun, and for the checkpoint of a fork; then carry it out.

    Args:
        report: of the run.
        name: "fork" or "rerun".
        step: the checkpoint that is chosen at first; None: the newest.
        act: carries out the action.
    """
    run, before = report.run, flattened(report.run.config)
    with ui.dialog() as dialog, ui.card().style("width: 560px; max-width: 95vw"):
        dialog.on("hide", dialog.delete)  # it is made for one use
        ui.label(f"{name.capitalize()} {escaped(run.name)}").classes("text-bold")
        steps = {one.step: f"step {shown_step(one.step)}" for one in reversed(report.checkpoints)}
        choice = None
        if name == "fork":
            chosen = step if step is not None else next(iter(steps), None)
            choice = ui.select(steps, value=chosen, label="from the checkpoint of").props("dense outlined")
            choice.classes("w-full")
        box = ui.textarea("settings, one a line: NAME=VALUE", value=escaped_lines(setting_lines(run.config))).props(
            "outlined dense autogrow"
        )
        box.classes("w-full mono")
        problem = ui.label().classes("text-negative")

        def submit() -> None:
            try:
                given = settings_of(line for line in str(box.value or "").splitlines() if line.strip())
            except ValueError as error:
                problem.set_text(str(error))
                return
            changed = {key: value for key, value in given.items() if key not in before or before[key] != value}
            dialog.submit(RunAction(name, run.id, changed, None if choice is None else choice.value))

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat dense no-caps")
            ui.button(name.capitalize(), on_click=submit).props("dense no-caps")
    if action := await dialog:
        await act(action)


__all__ = ["Act", "RunHeader", "ask_settings", "setting_lines"]
