"""`TopChoice`: what a user of `ropewalk top` has chosen, and what follows from each key; pure.

things ── enter ──▶ processes of the chosen thing ── k ──▶ "kill worker.3?" ── y ──▶ AskedAction
       ◀── esc ──
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.control.parts import below_wholes
from ropewalk.control.view import ProcessView
from ropewalk.page.watcher import Seen

SORTS = ("order", "rate", "cpu", "memory", "silence")
"""By what rows are sorted: in the order of starts and names, or the greatest number first."""
_PAGE = 10
"""Rows of a step by page up and page down."""


@dataclass(frozen=True, slots=True)
class AskedAction:
    """Ask a launcher for an action.

    Attributes:
        id: of the thing.
        action: of `View.actions` or `View.process_actions`.
        process: its name; "" for the whole thing.
    """

    id: str
    action: str
    process: str = ""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the command."""


@dataclass(slots=True)
class TopChoice:
    """What is chosen; `pressed` changes it.

    Attributes:
        id: of the chosen thing; "" before there is one.
        process: name of the chosen process; "" if there is none.
        in_processes: whether keys move among processes, and not among things.
        sort: one of `SORTS`.
        question: the action that a key has asked for, and that is not confirmed yet.
        message: the outcome of the last action.
    """

    id: str = ""
    process: str = ""
    in_processes: bool = False
    sort: str = SORTS[0]
    question: AskedAction | None = None
    message: str = ""

    def settle(self, things: Sequence[Seen]) -> None:
        """Choose something, if nothing is chosen or what was chosen is not there any more.

        Args:
            things: everything that is shown, as `sorted_things` returns it.
        """
        thing = self.thing(things)
        if thing is None:
            thing = things[0] if things else None
            self.id, self.process, self.in_processes, self.question = (thing.view.id if thing else ""), "", False, None
        names = [one.name for one in sorted_processes(thing, self.sort)] if thing else []
        if self.process not in names:
            self.process = names[0] if names else ""
        self.in_processes = self.in_processes and bool(names)

    def thing(self, things: Sequence[Seen]) -> Seen | None:
        """Return the chosen thing."""
        return next((one for one in things if one.view.id == self.id), None)

    def pressed(self, key: str, things: Sequence[Seen]) -> AskedAction | Leave | None:
        """Take a key.

        Args:
            key: as `keyboard.keys_in` names it.
            things: everything that is shown, as `sorted_things` returns it.

        Returns:
            What to do, if anything beside drawing.
        """
        if key == "resize":
            return None
        self.message = ""
        if self.question is not None:
            asked, self.question = self.question, None
            if key in ("y", "Y"):
                return asked
            self.message = "not done"
            return None
        if key in ("q", "Q"):
            return Leave()
        if key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "k":
            self._ask(things)
        elif key in ("enter", "right"):
            self.in_processes = bool(self.process)
        elif key in ("escape", "left"):
            self.in_processes = False
        else:
            self._move(key, things)
        return None

    def _move(self, key: str, things: Sequence[Seen]) -> None:
        thing = self.thing(things)
        if thing is None:
            return
        if self.in_processes:
            self.process = _moved(key, [one.name for one in sorted_processes(thing, self.sort)], self.process)
        else:
            self.id = _moved(key, [one.view.id for one in sorted_things(things, self.sort)], self.id)
            self.process = ""
            self.settle(things)

    def _ask(self, things: Sequence[Seen]) -> None:
        thing = self.thing(things)
        if thing is None:
            return
        view = thing.view
        offered = view.process_actions if self.in_processes else view.actions
        action = "kill" if self.in_processes else "stop"
        if not thing.is_live:
            self.message = f"{view.name} does not run, or does not answer"
        elif action not in offered:
            self.message = f"{view.name} cannot be asked to {action}{' a process' if self.in_processes else ''}"
        else:
            self.question = AskedAction(view.id, action, self.process if self.in_processes else "")


def _moved(key: str, names: Sequence[str], chosen: str) -> str:
    """Return the name that a key leads to."""
    at = names.index(chosen) if chosen in names else 0
    steps = {"up": -1, "down": 1, "page up": -_PAGE, "page down": _PAGE, "home": -len(names), "end": len(names)}
    return names[max(0, min(len(names) - 1, at + steps.get(key, 0)))] if names else chosen


def sorted_things(things: Sequence[Seen], sort: str) -> list[Seen]:
    """Return things in an order of `SORTS`; those that have ended stay last."""
    if sort == SORTS[0]:
        by_id = {thing.view.id: thing for thing in things}
        return [by_id[view.id] for view, _ in below_wholes([thing.view for thing in things])]
    return sorted(things, key=lambda one: (one.gone, -total(one, sort)))


def sorted_processes(seen: Seen, sort: str) -> list[ProcessView]:
    """Return the processes of a thing in an order of `SORTS`; equal ones by name."""
    named = sorted(seen.view.processes, key=lambda one: _natural(one.name))
    return named if sort == SORTS[0] else sorted(named, key=lambda one: -measured(seen, one, sort))


def measured(seen: Seen, process: ProcessView, sort: str) -> float:
    """Return a number of a process: tasks per second, cores, bytes, or seconds of silence; 0 before it is known."""
    match sort:
        case "rate":
            return seen.rate(process.name) or 0.0
        case "cpu":
            return seen.cpu_share(process.name) or 0.0
        case "memory":
            return float(process.memory_bytes)
        case _:
            return process.silent_s


def total(seen: Seen, sort: str) -> float:
    """Return the sum over a thing's processes; of silence, and of steps that each stage takes, the greatest."""
    numbers = [measured(seen, one, sort) for one in seen.view.processes]
    is_shared = sort == "rate" and seen.view.kind == "trainer"
    return max(numbers, default=0.0) if sort == "silence" or is_shared else sum(numbers)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which worker.10 comes after worker.2."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]
