"""The first page: what runs now, and below it what has ended lately."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui
from starlette.requests import Request

from ropewalk.control.facts import shown_number
from ropewalk.control.parts import below_wholes
from ropewalk.escaping import escaped
from ropewalk.page.browser import add_now_head, remember_entries
from ropewalk.page.frame import Visit, page_frame
from ropewalk.page.small_curve import small_curve
from ropewalk.page.style import state_group
from ropewalk.page.totals import Totals, totals
from ropewalk.page.watcher import Seen, Watcher
from ropewalk.quantities import shown_duration, shown_size

_MOST_ENDED = 100
"""Things that have ended are shown up to this number, the newest: a script may make a pool every second."""
_DEEPEST = 3
"""Parts that are deeper stand below each other."""
_HEADS = ("", "progress", "up", "CPU", "memory", "rate")
_EXAMPLE = """import ropewalk

with ropewalk.Pool(4) as pool:
    pool.map(pow, range(1000), range(1000))"""


def add_now_page(watcher: Watcher) -> None:
    """Serve `/`.

    Args:
        watcher: knows what runs.
    """

    @ui.page("/", title="Now")
    def now(request: Request) -> None:
        with page_frame(request, "Now") as visit:
            add_now_head(visit.style)
            visit.when_gone(lambda: watcher.unwant(visit.client))
            board = _Board(watcher, visit, request.query_params.get("q", ""))
            board.refresh()
            visit.every(board.refresh)


class _Board:
    """All rows: one for each thing, which is made once and changed in place."""

    def __init__(self, watcher: Watcher, visit: Visit, text: str) -> None:
        self._watcher = watcher
        self._visit = visit
        self._rows: dict[str, _ThingRow] = {}
        self._filter = _simplified(text)
        with ui.row().classes("items-center w-full"):
            self._summary = ui.label().classes("rw-small")
            ui.space()
            self._search = (
                ui.input(
                    placeholder="filter by name, kind or state",
                    value=text,
                    on_change=lambda e: self._find(str(e.value or "")),
                )
                .props('dense outlined clearable type=search aria-label="filter"')
                .classes("filter")
                .style("width:260px")
            )
        self._problems = ui.label().classes("rw-banner rw-problem").style("white-space:pre-line")
        with ui.element("div").classes("rw-thing rw-heads") as self._heads:
            for head in _HEADS:
                ui.label(head).classes("rw-number" if head in _HEADS[2:] else "")
        self._live = ui.element("div").classes("rw-things")
        with ui.row().classes("items-baseline q-mt-md") as self._ended_title:
            ui.label("Ended").classes("text-subtitle2 text-bold")
            self._ended_words = ui.label().classes("rw-small")
        self._ended = ui.element("div").classes("rw-things")
        self._empty = _empty()

    def refresh(self) -> None:
        """Show what is known now."""
        self._watcher.want(self._visit.client)
        things, problems = self._watcher.things(), self._watcher.problems()
        live = [seen for seen in things if not has_ended(seen)]
        ended, num_ended = shown_ended(things, self._filter)
        for id in self._rows.keys() - {seen.view.id for seen in (*live, *ended)}:
            self._rows.pop(id).delete()
        for home, those in ((self._live, live), (self._ended, ended)):
            by_id = {seen.view.id: seen for seen in those}
            for place, (view, depth) in enumerate(below_wholes([seen.view for seen in those])):
                seen = by_id[view.id]
                row = self._rows.get(seen.view.id)
                if row is None:
                    with home:
                        row = self._rows[seen.view.id] = _ThingRow(seen.view.id)
                row.put(home, place)
                row.show(seen, self._visit, self._watcher.age_s(seen), depth)
                row.set_visible(is_found(seen, self._filter))
        up = sum(row.totals.up for seen in live if (row := self._rows[seen.view.id]).totals)
        silent = sum(bool(seen.problem) for seen in live)
        words = [f"{len(live) - silent} running" if live else "nothing runs", f"{up:,} processes up"] if things else []
        words += [f"{silent} without an answer"] if silent else []
        self._summary.set_text(" · ".join(words))
        _set_words(self._problems, "\n".join(f"Cannot be seen: {escaped(problem)}" for problem in problems))
        self._heads.set_visibility(bool(things))
        self._search.set_visibility(bool(things))
        newest = f"the newest {len(ended)} of {num_ended:,}, " if num_ended > len(ended) else ""
        self._ended_words.set_text(f"in the last hour; {newest}last state kept")
        self._ended_title.set_visibility(bool(ended))
        self._empty.set_visibility(not things and not problems)

    def _find(self, text: str) -> None:
        self._filter = _simplified(text)
        remember_entries({"q": text})
        self.refresh()


class _ThingRow:
    """The row of one thing."""

    def __init__(self, id: str) -> None:
        self.totals: Totals | None = None
        self._look = ""
        self._last: tuple[object, ...] = ()
        self._root = ui.element("div").classes("rw-thing")
        self._place: tuple[int, int] | None = None
        with self._root:
            with ui.element("div").classes("rw-cell"):
                self._name = ui.link("", f"/now/{id}").classes("rw-name")
                self._kind = ui.label().classes("rw-small rw-cell")
            with ui.element("div"):
                with ui.element("div").classes("rw-progress") as self._track:
                    self._bar = ui.element("div").style("width:0%")
                self._left = ui.label().classes("rw-small rw-cell")
            self._up = ui.label().classes("rw-number")
            self._cpu = ui.label().classes("rw-number")
            self._memory = ui.label().classes("rw-number")
            with ui.element("div").classes("rw-rate"):
                self._curve = ui.html("", sanitize=False)  # made of numbers alone
                self._rate = ui.label().classes("rw-number")
            self._problem = ui.label().classes("rw-problem rw-wide")
            self._failure = ui.label().classes("rw-failure rw-wide")

    def put(self, home: ui.element, place: int) -> None:
        """Move the row to its place, if it is elsewhere."""
        if self._place != (home.id, place):
            if home.default_slot.children.index(self._root) != place if self._root in home else True:
                self._root.move(home, place)
            self._place = (home.id, place)

    def show(self, seen: Seen, visit: Visit, age_s: float, depth: int) -> None:
        """Show what is known of the thing.

        Args:
            seen: what is known.
            visit: of the tab.
            age_s: seconds since it was seen.
            depth: 0; 1 for a part of a thing above it, 2 for a part of a part.
        """
        view, is_over, minutes = seen.view, has_ended(seen) and not seen.problem, int(age_s // 60)
        last = (view, seen.gone, depth, minutes) if is_over else ()
        if last and last == self._last:  # much may have ended in an hour, and is told only when another minute is over
            return
        self._last = last
        sums = self.totals = totals(seen)
        state = shown_state(seen)
        self._name.set_text(escaped(view.name) or view.id)
        words = [view.kind, escaped(state), shown_duration(_whole(view.at - view.started))]
        if is_over:
            words[2:] = [f"ran {words[2]}", f"ended {minutes} min ago" if minutes else "ended just now"]
        self._kind.set_text(" · ".join(words))
        self._set_look(look_of(seen), ended=has_ended(seen), depth=depth)
        _set_width(self._bar, view.progress)
        self._track.set_visibility(view.progress is not None)
        self._left.set_text(progress_words(seen))
        self._up.set_text(f"{sums.up}/{sums.processes}" if sums.processes and not has_ended(seen) else "")
        self._cpu.set_text(f"{sums.cores:.1f} cores" if sums.cores is not None and seen.is_live else "")
        self._memory.set_text(shown_size(sums.memory_bytes) if sums.memory_bytes else "")
        words = rate_words(seen, sums)
        self._rate.set_text(words)
        self._curve.set_content(small_curve(sums.rates, visit.style.colors[0], 90) if words else "")
        _set_words(self._problem, problem_words(seen, age_s) if seen.problem else "")
        _set_words(self._failure, f"last failure: {escaped(view.last_failure)}" if view.last_failure else "")

    def set_visible(self, visible: bool) -> None:
        """Show or hide it."""
        if self._root.visible != visible:
            self._root.set_visibility(visible)

    def delete(self) -> None:
        """Remove it from the page."""
        self._root.delete()

    def _set_look(self, look: str, *, ended: bool, depth: int) -> None:
        part = f" rw-part rw-part-{min(depth, _DEEPEST)}" if depth else ""
        classes = f"rw-thing rw-{look}{' rw-ended' if ended else ''}{part}"
        if classes != self._look:
            self._root.classes(replace=classes)
            self._look = classes


def shown_ended(things: Sequence[Seen], text: str) -> tuple[list[Seen], int]:
    """Return what has ended and is found by a text, the newest first and not too much of it, and how much there is.

    Args:
        things: everything that is known.
        text: in small letters.
    """
    found = [seen for seen in things if has_ended(seen) and is_found(seen, text)]
    return sorted(found, key=lambda seen: seen.view.at, reverse=True)[:_MOST_ENDED], len(found)


def is_found(seen: Seen, text: str) -> bool:
    """Return whether a text, in small letters, is in the name, the kind, the state or the id of a thing."""
    return text in f"{seen.view.name} {seen.view.kind} {shown_state(seen)} {seen.view.id}".lower()


def has_ended(seen: Seen) -> bool:
    """Return whether a thing does not run any more: it said so, or it is gone."""
    return seen.gone or seen.view.has_ended


def shown_state(seen: Seen) -> str:
    """Return the state in a word: that of the view, unless the thing is gone or does not answer."""
    if seen.view.has_ended:
        return seen.view.state
    return "ended" if seen.gone else "no answer" if seen.problem else seen.view.state


def look_of(seen: Seen) -> str:
    """Return the group of colours of a thing."""
    state = shown_state(seen)
    if seen.problem:
        return "warn"
    return "muted" if has_ended(seen) and state != "failed" else state_group(state)


def problem_words(seen: Seen, age_s: float) -> str:
    """Return why a thing is not seen any more; "" if it is."""
    if seen.problem:
        return f"{escaped(seen.problem)}; last seen {shown_duration(_whole(age_s))} ago, this is its last state"
    if has_ended(seen):
        return f"ended {shown_duration(_whole(age_s))} ago, last state kept"
    return ""


def progress_words(seen: Seen) -> str:
    """Return the share that is done and the time left, as far as they are known."""
    view = seen.view
    words = [f"{100 * view.progress:.0f} %"] if view.progress is not None else []
    if view.left_s is not None and seen.is_live:
        words.append(f"{shown_duration(_whole(view.left_s))} left")
    return " · ".join(words)


def rate_words(seen: Seen, sums: Totals) -> str:
    """Return what is completed in a second; 0 of what runs, which may hang, and "" of what ended without."""
    if sums.rate is None or not (sums.rate or seen.is_live):
        return ""
    return f"{shown_number(sums.rate)} {sums.rate_of}/s".replace(" /s", "/s")


def _whole(seconds: float) -> float:
    return max(0.0, float(round(seconds)))


def _simplified(text: str) -> str:
    return text.lower().strip()


def _set_width(bar: ui.element, share: float | None) -> None:
    width = f"{100 * min(1.0, max(0.0, share or 0.0)):.1f}%"
    if bar.style != {"width": width}:
        bar.style(replace=f"width:{width}")


def _set_words(label: ui.label, words: str) -> None:
    label.set_text(words)
    if label.visible != bool(words):
        label.set_visibility(bool(words))


def _empty() -> ui.element:
    with ui.element("div").classes("rw-empty column") as box:
        ui.label("Nothing runs").classes("rw-title")
        ui.label(
            "Programs, pools, trainers, populations and searches of yours appear here by themselves, within a second "
            "of their start. For example:"
        )
        _code(_EXAMPLE)
        ui.label("or, from a terminal, a program in a file of yours:")
        _code("ropewalk run my_program.py")
        with ui.row().classes("items-center").style("gap: 5px"):
            ui.label("Runs that have ended are kept under")
            ui.link("Runs", "/runs")
    return box


def _code(text: str) -> None:
    with ui.element("pre").classes("rw-code"):
        ui.label(text)
