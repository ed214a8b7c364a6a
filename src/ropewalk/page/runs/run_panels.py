"""The parts of a run's page beside its curves and logs: settings, time line, checkpoints, artifacts and notes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from nicegui import ui

from ropewalk.errors import CheckpointCorrupt
from ropewalk.escaping import escaped, escaped_lines
from ropewalk.page.frame import Panel, Visit
from ropewalk.page.runs.layout import plain_table, tiles
from ropewalk.page.runs.notices import tell
from ropewalk.page.runs.run_actions import RunAction
from ropewalk.page.runs.run_files import IMAGE_TYPES
from ropewalk.page.runs.run_header import Act, ask_settings, setting_lines
from ropewalk.page.runs.store_reader import StoreReader, StoreUnreadable
from ropewalk.page.style import state_color
from ropewalk.quantities import shown_duration, shown_size
from ropewalk.tracking.checkpoints import read_checkpoint, shown_step
from ropewalk.tracking.run_reports import RunReport, flattened
from ropewalk.tracking.store.rows import ArtifactRow, CheckpointRow

_MOST_EVENTS = 200
_MOST_IMAGES = 24
_DECISION = "decision"
"""Kind of the events that are lines of a search's book, which its own page shows."""


def draw_config(report: RunReport) -> None:
    """Draw the settings of a run and the facts about it."""
    with tiles(420):
        with Panel("Settings") as card:
            if report.run.config:
                lines = escaped_lines(setting_lines(report.run.config))
                with card.head:
                    ui.space()
                    words = 'flat round dense size="xs" title="copy as lines" aria-label="copy settings as lines"'
                    copy = ui.button(icon="content_copy", on_click=lambda: _copy(lines)).props(words).classes("muted")
                    copy.style("margin-right: -32px")
                rows = [(name, _shown(value)) for name, value in flattened(report.run.config).items()]
                plain_table("settings", ("name", "value"), rows, grow=1)
            else:
                ui.label("The run has no settings.").classes("muted")
        with Panel("Code and host"):
            short = {name: value for name, value in report.facts.items() if name not in ("packages", "git", "argv")}
            git = cast("dict[str, Any]", report.facts.get("git") or {})
            short |= {f"git {name}": value for name, value in git.items() if name != "diff"}
            rows = [(name, _shown(value)) for name, value in short.items()]
            plain_table("code and host", ("name", "value"), rows, grow=1)
            if git.get("diff"):
                with ui.expansion("uncommitted changes").classes("w-full").props("dense"):
                    ui.label(escaped_lines(str(git["diff"])[:200_000])).classes("mono")
            packages = report.facts.get("packages")
            if isinstance(packages, dict):
                found = cast("dict[str, Any]", packages)
                with ui.expansion(f"{len(found)} packages").classes("w-full").props("dense"):
                    ui.label(escaped_lines("\n".join(f"{name} {version}" for name, version in found.items()))).classes(
                        "mono"
                    )


def _copy(lines: str) -> None:
    ui.clipboard.write(lines)
    tell("The settings are copied, a line NAME=VALUE for each, as Rerun and `ropewalk runs rerun --set` take them.")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def draw_time_line(report: RunReport, visit: Visit) -> None:
    """Draw the attempts of a run with their causes, and its events."""
    style = visit.style
    with Panel("Attempts"):
        if not report.attempts:
            ui.label("No process has worked on it yet.").classes("muted")
        for one in reversed(report.attempts):
            outcome = one.outcome or "running"
            took = shown_duration(one.lasted_s(time.time()))
            at_step = "" if one.at_step is None else f", last step {shown_step(one.at_step)}"
            with ui.row().classes("items-center q-gutter-x-sm"):
                ui.icon("circle", size="9px").style(f"color:{state_color(outcome, style)}")
                ui.label(f"{one.number}. {outcome}").classes("text-bold")
                ui.label(
                    escaped(
                        f"{visit.moment(one.began)}, {took}, from step {shown_step(one.from_step or 0.0)}{at_step}, "
                        f"process {one.pid} on {one.host}"
                    )
                ).classes("muted")
            if one.cause:
                cause = escaped_lines(one.cause.strip())
                ui.label(cause).classes("mono").style(f"color:{style.bad}; max-height: 220px; overflow: auto")
    events = [event for event in report.events if event.kind != _DECISION]
    with Panel("Events"):
        if not events:
            ui.label("Nothing happened that is worth a line.").classes("muted")
        rows = [(visit.moment(event.time), event.kind, event.text) for event in reversed(events[-_MOST_EVENTS:])]
        if rows:
            plain_table("events", ("time", "kind", ""), rows, grow=2)
        if len(events) > _MOST_EVENTS:
            ui.label(f"{len(events) - _MOST_EVENTS} earlier ones: ropewalk runs show --json").classes("muted")


def draw_checkpoints(report: RunReport, pinned: Collection[float], visit: Visit, reader: StoreReader, act: Act) -> None:
    """Draw the checkpoints of a run, which can be verified, pinned and forked from.

    Args:
        report: of the run.
        pinned: steps of those that are pinned.
        visit: whether the visitor may act.
        reader: reads them, to verify them.
        act: carries out an action.
    """
    if not report.checkpoints:
        ui.label("The run has no checkpoint: `run.checkpoint(state)` writes one.").classes("muted")
        return
    scores = [one.score for one in report.checkpoints if one.score is not None]
    rows: list[tuple[Any, ...]] = []
    for one in reversed(report.checkpoints):
        score = "" if one.score is None else f"{one.score:.6g}"
        rows.append((shown_step(one.step), shown_size(one.size_bytes), score, visit.moment(one.time), one.path,
                     _checkpoint_tools(report, one, one.step in pinned, visit, reader, act)))  # fmt: skip
    with Panel(
        "Checkpoints", help=f"{len(rows)} kept" + (f", scores {min(scores):.5g} to {max(scores):.5g}" if scores else "")
    ):
        heads = ("step", "size", "score", "written", "folder", "")
        plain_table("checkpoints", heads, rows, right=(0, 1, 2), grow=4)


def _checkpoint_tools(
    report: RunReport, one: CheckpointRow, is_pinned: bool, visit: Visit, reader: StoreReader, act: Act
) -> Callable[[], None]:
    step, path = one.step, one.path

    async def verify() -> None:
        button.props("loading")
        try:
            problem = await reader.read(lambda store: verified(path))
        except StoreUnreadable as error:
            problem = str(error)
        button.props(remove="loading")
        button.set_text("damaged" if problem else "whole")
        tell(problem or f"step {shown_step(step)}: every byte is as it was written", is_good=not problem)

    def draw() -> None:
        nonlocal button
        with ui.row().classes("no-wrap q-gutter-x-xs"):
            button = ui.button("verify", on_click=verify).props("flat dense no-caps size=12px")
            if is_pinned and not visit.may_act:
                ui.label("pinned").classes("text-caption muted")
            if visit.may_act:
                name = "unpin" if is_pinned else "pin"
                pin = ui.button(name, on_click=lambda: act(RunAction(name, report.run.id, step=step)))
                pin.props(f"flat dense no-caps size=12px {'icon=push_pin' if is_pinned else ''}")
                fork = ui.button("fork from here", on_click=lambda: ask_settings(report, "fork", step, act))
                fork.props("flat dense no-caps size=12px")

    button: Any = None
    return draw


def verified(path: str) -> str:
    """Read a checkpoint and compare each byte with its digest; returns what is wrong, "" if nothing is."""
    try:
        read_checkpoint(Path(path))
    except (CheckpointCorrupt, OSError) as error:
        return str(error)
    return ""


def draw_artifacts(report: RunReport, visit: Visit) -> None:
    """Draw the images of a run, by name and step, and links that save its files."""
    if not report.artifacts:
        ui.label("The run has no artifacts: `run.artifact(path)` and `run.image(name, array)` keep them.").classes(
            "muted"
        )
        return
    numbered = list(enumerate(report.artifacts))
    images: dict[str, list[tuple[int, ArtifactRow]]] = {}
    for number, one in numbered:
        if one.kind == "image" and one.media_type in IMAGE_TYPES:
            images.setdefault(one.name, []).append((number, one))
    if images:
        with tiles(300, fill=True):
            for name, found in list(images.items())[:_MOST_IMAGES]:
                _draw_images(report.run.id, name, found)
    rows = [
        (_link(report.run.id, number, one), one.kind, shown_size(one.size_bytes),
         "" if one.step is None else shown_step(one.step), visit.moment(one.time), one.sha256[:12])
        for number, one in reversed(numbered)
    ]  # fmt: skip
    with Panel("Files", help="saved, and never shown as a page"):
        plain_table("files", ("name", "kind", "size", "step", "time", "sha256"), rows, right=(2, 3))


def _draw_images(run: str, name: str, found: Sequence[tuple[int, ArtifactRow]]) -> None:
    with ui.card().classes("panel q-pa-sm").props("flat"):
        ui.label(escaped(name)).classes("text-bold")
        picture = ui.element("img").style("max-width: 100%; max-height: 320px; image-rendering: auto")
        caption = ui.label().classes("text-caption muted")

        def show(at: int) -> None:
            number, one = found[at]
            picture.props["src"] = f"..{_address(run, number)}?inline=1"
            picture.props["alt"] = escaped(name)
            picture.update()
            place = f"{at + 1} of {len(found)}" if len(found) > 1 else ""
            caption.set_text(place if one.step is None else f"step {shown_step(one.step)}")

        if len(found) > 1:
            slider = ui.slider(min=0, max=len(found) - 1, step=1, value=len(found) - 1)
            slider.props('dense aria-label="step"').on_value_change(lambda e: show(int(e.value or 0)))
        show(len(found) - 1)


def _link(run: str, number: int, one: ArtifactRow) -> Callable[[], None]:
    return lambda: ui.link(escaped(one.name), _address(run, number)) and None


def _address(run: str, number: int) -> str:
    return f"/files/{quote(run, safe='')}/{number}"


def draw_notes(report: RunReport, visit: Visit, act: Act) -> None:
    """Draw the notes of a run, and a box for another one."""
    for note in report.notes:
        ui.label(visit.moment(note.time)).classes("text-caption muted")
        ui.label(escaped_lines(note.text)).style("white-space: pre-wrap; overflow-wrap: anywhere")
    if not report.notes:
        ui.label("No notes yet.").classes("muted")
    if not visit.may_act:
        return
    box = ui.textarea(placeholder="a remark on this run").props("outlined dense autogrow").classes("w-full")

    async def keep() -> None:
        text = str(box.value or "").strip()
        if text:
            box.set_value("")
            await act(RunAction("note", report.run.id, text=text))

    ui.button("Add note", on_click=keep).props("dense no-caps")


def draw_children(report: RunReport, visit: Visit) -> None:
    """Draw links to the runs that belong to a run or were forked from it."""
    counts: Mapping[str, int] = {}
    for child in report.children:
        counts = {**counts, child.state: counts.get(child.state, 0) + 1}
    rows: list[tuple[Any, ...]] = []
    for child in report.children[:500]:
        link = lambda child=child: ui.link(escaped(child.name), f"/runs/{quote(child.id, safe='')}") and None  # noqa: E731
        how = "" if child.parent_step is None else f"forked at step {shown_step(child.parent_step)}"
        rows.append((link, child.state, child.kind, how, visit.moment(child.created)))
    with Panel("Runs", help=", ".join(f"{num} {state}" for state, num in counts.items())):
        plain_table("runs", ("name", "state", "kind", "", "started"), rows)


__all__ = [
    "draw_artifacts",
    "draw_checkpoints",
    "draw_children",
    "draw_config",
    "draw_notes",
    "draw_time_line",
    "verified",
]
