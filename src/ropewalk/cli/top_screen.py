"""What `ropewalk top` shows: everything that runs, and the chosen one with its processes; as lines of a terminal.

 top    2 things, 9 processes                    12:31:05
  name     kind  state    up   processes  rate  cpu  memory      the things
> es       pool  running  31s          8  93/s  7.2  1.6 GiB
 es  workers 8, tasks_per_s 93.2                                 the chosen one: its facts
 last failure: worker.3 was killed by SIGKILL
  process   state    doing   rate  cpu  memory  silent           its processes
  worker.0  running  ...
 enter processes  s sort  k kill  q quit

All texts come from processes and users, and are escaped.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.text import Text

from ropewalk.cli.top_choice import SORTS, TopChoice, sorted_processes, sorted_things, total
from ropewalk.control.facts import shown_facts
from ropewalk.control.view import ProcessView
from ropewalk.escaping import escaped
from ropewalk.page.watcher import Seen
from ropewalk.quantities import counted, shown_duration, shown_size

NOTHING_RUNS = "this user runs nothing on this machine"
_STATES = {
    "running": "green", "completed": "green", "idle": "green", "starting": "cyan", "restarting": "yellow",
    "stopping": "yellow", "waiting": "yellow", "paused": "yellow", "failed": "bold red", "lost": "bold red",
    "ended": "dim",
}  # fmt: skip
_HEAD = "dim"
_CHOSEN = "reverse"
_FEWEST_THINGS = 3
_CAUSE_LINES = 3
_FACT_LINES = 2
_NO_BREAK = "\N{NO-BREAK SPACE}"
"""In a fact, so that a line ends between two of them."""
_LISTING_WIDTH = 160
_OTHER_LINES = 4
"""The first line, the last one, and two headings."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a list.

    Attributes:
        name: its heading.
        width: in cells; of the last column the least width, since it takes what is left.
        right: whether it is aligned to the right.
        wide: the width of a terminal from which on it is shown.
        narrow: the width of a terminal from which on it is not shown; 0: it always is.
        keeps_end: whether a text that is too long loses its beginning: the names of processes differ in their ends.
    """

    name: str
    width: int
    right: bool = False
    wide: int = 0
    narrow: int = 0
    keeps_end: bool = False

    def fits(self, width: int) -> bool:
        """Return whether it is shown in a terminal of this width."""
        return self.wide <= width and (not self.narrow or width < self.narrow)


_WITH_FAILURES = 96
"""The width of a terminal from which on the list says what failed; a narrower one marks what failed."""
_THINGS = (
    _Column("name", 16), _Column("kind", 10), _Column("state", 9), _Column("!", 1, narrow=_WITH_FAILURES),
    _Column("up", 6, right=True), _Column("procs", 5, right=True), _Column("done/s", 6, right=True),
    _Column("cpu", 5, right=True), _Column("memory", 8, right=True), _Column("last failure", 5, wide=_WITH_FAILURES),
)  # fmt: skip
_PROCESSES = (
    _Column("process", 14, keeps_end=True), _Column("state", 10),
    _Column("host", 12, wide=110), _Column("pid", 7, True, wide=100),
    _Column("done/s", 6, right=True), _Column("done", 8, True, wide=100), _Column("wait", 4, right=True),
    _Column("cpu", 5, right=True), _Column("memory", 8, right=True), _Column("silent", 6, right=True),
    _Column("re", 2, right=True), _Column("doing", 10),
)  # fmt: skip


def screen(
    things: Sequence[Seen], choice: TopChoice, size: tuple[int, int], now: float, *, looked: bool, late_s: float = 0.0
) -> Text:
    """Return what fills a terminal.

    Args:
        things: everything, as the watcher returns it.
        choice: what is chosen; settled.
        size: columns and lines.
        now: Unix time in seconds.
        looked: whether the watcher has looked yet.
        late_s: seconds for which it has not looked, although it should have; 0 if it looks as it should.
    """
    width, height = size
    rows = sorted_things(things, choice.sort)
    thing = choice.thing(rows)
    lines = [_first_line(rows, choice, width, now, late_s)]
    if thing is None:
        lines += [Text(""), Text(NOTHING_RUNS if looked else "looking for what runs")]
        return _filled(lines, [_last_line(choice, None)], size)
    processes = sorted_processes(thing, choice.sort)
    about, cause = [*_chosen_lines(thing, width), *_failure_lines(thing)], _cause_lines(processes, choice, width)
    num_things, num_processes = _shares(len(rows), len(processes), height - _OTHER_LINES - len(about) - len(cause))
    at = next(index for index, one in enumerate(rows) if one is thing)
    lines.append(_line(_THINGS, [column.name for column in _THINGS], width, _HEAD))
    lines += [
        _thing_line(one, width, chosen=one is thing, held=not choice.in_processes)
        for one in _window(rows, at, num_things)
    ]
    lines += about
    if processes:
        names = [one.name for one in processes]
        at = names.index(choice.process) if choice.process in names else 0
        lines.append(_line(_PROCESSES, [column.name for column in _PROCESSES], width, _HEAD))
        lines += [
            _process_line(thing, one, width, chosen=choice.in_processes and one.name == choice.process)
            for one in _window(processes, at, num_processes)
        ]
    below = [*cause, *_event_lines(thing), _last_line(choice, thing)]
    return _filled(lines, below, size)


def listing(things: Sequence[Seen]) -> str:
    """Return everything, with all processes, as text for logs and scripts; lines longer than 160 letters are cut."""
    sort, width = SORTS[0], _LISTING_WIDTH
    blocks: list[Text] = []
    for thing in sorted_things(things, sort):
        blocks.append(_line(_THINGS, [column.name for column in _THINGS], width, ""))
        blocks.append(_thing_line(thing, width, chosen=False, held=False))
        blocks += [Text(f"  {_facts(thing)}"), *_failure_lines(thing)]
        processes = sorted_processes(thing, sort)
        if processes:
            blocks.append(_line(_PROCESSES, [column.name for column in _PROCESSES], width, ""))
            blocks += [_process_line(thing, one, width, chosen=False) for one in processes]
        blocks += [Text(f"  {escaped(one.name)}: {_one_line(one.last_cause)}") for one in processes if one.last_cause]
        blocks.append(Text(""))
    lines = [line.plain.rstrip() for line in blocks]
    return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before).rstrip()


def to_json(things: Sequence[Seen]) -> dict[str, Any]:
    """Return everything for scripts.

    Its form is `{"things": [view with "problem", "rate_per_s" and "cpu_cores"]}`; each process has the latter two as
    well, null before they are known.
    """
    found: list[dict[str, Any]] = []
    for seen in things:
        view = seen.view.to_json()
        for one in view["processes"]:
            one |= {"rate_per_s": seen.rate(one["name"]), "cpu_cores": seen.cpu_share(one["name"])}
        sums = {"rate_per_s": total(seen, "rate"), "cpu_cores": total(seen, "cpu")}
        found.append({**view, "problem": seen.problem, **sums})
    return {"things": found}


# --- lists ------------------------------------------------------------------------------------------------------------


def _shares(num_things: int, num_processes: int, free: int) -> tuple[int, int]:
    """Return how many rows of things and of processes are shown, of those that are free."""
    free = max(2, free)
    most = max(_FEWEST_THINGS, free // 3, free - num_processes)
    things = max(1, min(num_things, most, free - 1))
    return things, max(1, free - things)


def _window(rows: Sequence[Any], at: int, num: int) -> Sequence[Any]:
    """Return as many rows around the chosen one as there is room for."""
    start = max(0, min(at - num // 2, len(rows) - num))
    return rows[start : start + num]


def _thing_line(seen: Seen, width: int, *, chosen: bool, held: bool) -> Text:
    view = seen.view
    state = "silent" if seen.problem else "ended" if seen.gone and not view.has_ended else view.state
    failure = seen.problem or view.last_failure
    cells = [
        escaped(view.name),
        view.kind,
        Text(escaped(state), style=_STATES.get(state, "bold red" if seen.problem else "")),
        Text("!" if failure else "", style="bold red"),
        shown_duration(round(max(0.0, view.at - view.started))),
        str(len(view.processes)),
        _rate(total(seen, "rate") if view.processes and seen.is_live else None),
        _cores(total(seen, "cpu") if view.processes and seen.is_live else None),
        _size(sum(one.memory_bytes for one in view.processes)),
        Text(_one_line(failure), style="red"),
    ]
    return _line(_THINGS, cells, width, (_CHOSEN if held else "bold") if chosen else "", mark=chosen)


def _process_line(seen: Seen, one: ProcessView, width: int, *, chosen: bool) -> Text:
    doing_s = round(one.doing_s, 1)
    doing = f"{one.doing} for {shown_duration(doing_s)}" if one.doing and doing_s else one.doing
    slow = [("slow, ", "yellow")] if one.straggler else []
    cells = [
        escaped(one.name),
        Text(escaped(one.state), style="dim" if seen.gone else _STATES.get(one.state, "")),
        escaped(one.host),
        str(one.pid or ""),
        _rate(seen.rate(one.name)) if one.is_counted else "-",
        str(one.done) if one.is_counted else "-",
        str(one.waiting or ""),
        _cores(seen.cpu_share(one.name)),
        _size(one.memory_bytes),
        f"{one.silent_s:.1f}s" if one.silent_s < 60 else shown_duration(one.silent_s),
        str(one.restarts or ""),
        Text.assemble(*slow, escaped(doing)),
    ]
    return _line(_PROCESSES, cells, width, _CHOSEN if chosen else "", mark=chosen)


def _line(
    columns: Sequence[_Column], cells: Sequence[str | Text], width: int, style: str, *, mark: bool = False
) -> Text:
    """Return a row as one line of a width, with a mark before it that is seen without colours."""
    line = Text("> " if mark else "  ", style=style)
    left = width - 2
    shown = [pair for pair in zip(columns, cells, strict=True) if pair[0].fits(width)]
    for column, cell in shown:
        if left <= 0:
            break
        is_last = column is shown[-1][0]
        room = left if is_last else min(column.width, left)
        text = cell.copy() if isinstance(cell, Text) else Text(_end_of(cell, room) if column.keeps_end else cell)
        text.truncate(room, overflow="ellipsis")
        align: Literal["left", "right"] = "right" if column.right else "left"
        text.align(align, room)
        line.append_text(text)
        left -= room
        if not is_last and left > 0:
            line.append(" ")
            left -= 1
    return line


def _end_of(text: str, width: int) -> str:
    """Return a text, without its beginning where it is wider than `width` cells."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) >= width:
        text = text[1:]
    return f"…{text}"


# --- other lines ------------------------------------------------------------------------------------------------------


def _first_line(things: Sequence[Seen], choice: TopChoice, width: int, now: float, late_s: float) -> Text:
    num = sum(len(one.view.processes) for one in things if not one.gone)
    order = f", by {choice.sort}" if choice.sort != SORTS[0] else ""
    left = f"ropewalk top  {counted(len(things), 'thing')}, {counted(num, 'process', 'es')}{order}"
    late = f"{shown_duration(round(late_s))} old  " if late_s else ""
    clock = late + time.strftime("%H:%M:%S", time.localtime(now))
    line = Text(left, style="bold")
    line.truncate(max(1, width - len(clock) - 1), overflow="ellipsis", pad=True)
    return line.append(f" {clock}")


def _chosen_lines(seen: Seen, width: int) -> list[Text]:
    name = escaped(seen.view.name)
    whole = f"{name}  {_facts(seen)}".replace(" ", _NO_BREAK).replace(f",{_NO_BREAK}", ", ")
    wrapped = textwrap.wrap(whole, width, max_lines=_FACT_LINES, placeholder="…")
    first, *more = [line.replace(_NO_BREAK, " ") for line in wrapped] or [name]
    line = Text(first)
    line.stylize("bold", 0, len(name))
    return [line, *map(Text, more)]


def _facts(seen: Seen) -> str:
    view = seen.view
    progress = [] if view.progress is None else [f"{100 * view.progress:.0f} % done"]
    left = [] if view.left_s is None else [f"{shown_duration(view.left_s)} left"]
    facts = [f"{label} {value}" for label, value in shown_facts(view.facts)]
    run = [f"run {escaped(view.run)}"] if view.run else []
    return ", ".join([*progress, *left, *facts, f"pid {view.pid}", *run])


def _failure_lines(seen: Seen) -> list[Text]:
    said = seen.problem or (f"last failure: {seen.view.last_failure}" if seen.view.last_failure else "")
    return [Text(_one_line(said), style="red")] if said else []


def _cause_lines(processes: Sequence[ProcessView], choice: TopChoice, width: int) -> list[Text]:
    """Return why the chosen process ended last."""
    chosen = next((one for one in processes if one.name == choice.process and choice.in_processes), None)
    if chosen is None or not chosen.last_cause:
        return []
    text = f"{escaped(chosen.name)} last ended because: {_one_line(chosen.last_cause)}"
    lines = textwrap.wrap(text, width, max_lines=_CAUSE_LINES, placeholder="…")
    return [Text(line, style="red") for line in lines]


def _event_lines(seen: Seen) -> list[Text]:
    lines: list[Text] = []
    for event in seen.view.events[-3:]:
        at = time.strftime("%H:%M:%S  ", time.localtime(event.at)) if event.at else ""
        lines.append(Text(f"{at}{_one_line(event.text)}", style="dim"))
    return lines


def _last_line(choice: TopChoice, thing: Seen | None) -> Text:
    if choice.question is not None:
        name = choice.question.process or (thing.view.name if thing else choice.question.id)
        pid = next((one.pid for one in thing.view.processes if one.name == choice.question.process), 0) if thing else 0
        shown = f" (pid {pid})" if pid else ""
        return Text(f"{choice.question.action} {escaped(name)}{shown}? y: yes, any other key: no", style="bold yellow")
    if choice.message:
        return Text(escaped(choice.message), style="bold")
    keys = "esc back  k kill" if choice.in_processes else "enter processes  k stop"
    return Text(f"up/down select  {keys}  s sort: {choice.sort}  q quit", style="dim")


def _filled(above: list[Text], below: list[Text], size: tuple[int, int]) -> Text:
    """Return lines of exactly the height: the last one is always there, other lines below only where there is room."""
    width, height = size
    *optional, last = below
    room = max(0, height - 1)
    for line in (*above, *below):
        line.truncate(width, overflow="ellipsis")
    above = above[:room]
    optional = optional[: max(0, room - len(above))]
    gap = [Text("")] * (room - len(above) - len(optional))
    return Text("\n").join([*above, *gap, *optional, last])


def _one_line(text: str) -> str:
    return escaped(" ".join(text.split()))


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _cores(cores: float | None) -> str:
    return "" if cores is None else f"{100 * cores:.0f}%"


def _size(size_bytes: int) -> str:
    return shown_size(size_bytes) if size_bytes else ""
