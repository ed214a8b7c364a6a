"""How a group of processes is ended: ask, then SIGTERM, then SIGKILL, then give up.

Pure: events and times come in, instructions come out. The owner of the processes carries them out, and calls `tick`
again at `next_due`.

    begin ─▶ AskToEnd ──ask_s──▶ Terminate ──terminate_s──▶ Kill ──kill_s──▶ Abandon ─▶ done
              └── hurry: the next rung at once ──┘
    each process that exits leaves the ladder; the last one makes it `done`

A grace begins when its rung is reached, not when the shutdown began. An observer
that was stopped for a minute in between still gives every process its time.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

import msgspec


@dataclasses.dataclass(frozen=True, slots=True)
class Graces:
    """Seconds that processes get on each rung before the next."""

    ask_s: float = 5.0
    """Seconds after being asked over their link: they finish the task they are in."""
    terminate_s: float = 2.0
    """Seconds after SIGTERM: they run their handlers and `finally` blocks."""
    kill_s: float = 5.0
    """Seconds after SIGKILL: the kernel ends them, unless they hang in a system call (a dead network disk)."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value >= 0:
                raise ValueError(f"{field.name} must be a number of seconds, 0 or more, not {value}")


class Rung(enum.Enum):
    """How far a shutdown has come; it only ever moves downwards in this list."""

    RUNNING = "running"
    ASK = "ask"
    TERMINATE = "terminate"
    KILL = "kill"
    DONE = "done"


class AskToEnd(msgspec.Struct, frozen=True):
    """Ask these processes over their links to end."""

    names: tuple[str, ...]


class Terminate(msgspec.Struct, frozen=True):
    """Send SIGTERM to the groups of these processes."""

    names: tuple[str, ...]


class Kill(msgspec.Struct, frozen=True):
    """Send SIGKILL to the groups of these processes."""

    names: tuple[str, ...]


class Abandon(msgspec.Struct, frozen=True):
    """Report that these processes did not end even by SIGKILL, and stop waiting for them."""

    names: tuple[str, ...]


Instruction = AskToEnd | Terminate | Kill | Abandon


class Shutdown:
    """The shutdown of one group of processes.

    Args:
        names: the processes that are to end.
        graces: the seconds that each rung lasts.
    """

    def __init__(self, names: Iterable[str], graces: Graces | None = None) -> None:
        self._graces = graces or Graces()
        self._left = dict.fromkeys(names)  # a dict keeps the order for the instructions
        self._rung = Rung.RUNNING
        self._next_due: float | None = None

    @property
    def left(self) -> tuple[str, ...]:
        """The processes that have not ended; after `Abandon`, the abandoned ones."""
        return tuple(self._left)

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._rung is Rung.DONE

    @property
    def next_due(self) -> float | None:
        """Monotonic time in seconds at which `tick` has something to do; None before `begin` and when done."""
        return self._next_due

    def begin(self, now: float, at: Rung = Rung.ASK) -> list[Instruction]:
        """Begin on the given rung: ASK for `close`, TERMINATE or KILL for `terminate`.

        A second call only does what `hurry` does.

        Raises:
            ValueError: `at` is not a rung on which a shutdown can begin.
        """
        if at in (Rung.RUNNING, Rung.DONE):
            raise ValueError(f"a shutdown begins at ASK, TERMINATE or KILL, not at {at.name}")
        if _ORDER.index(at) <= _ORDER.index(self._rung):
            return []
        return self._enter(at, now)

    def exited(self, name: str) -> None:
        """Note that a process has ended; one that is not in the group, or ended before, changes nothing."""
        self._left.pop(name, None)
        if not self._left and self._rung is not Rung.RUNNING:
            self._rung, self._next_due = Rung.DONE, None

    def tick(self, now: float) -> list[Instruction]:
        """Go one rung further if the grace of the present one is over; at most one rung per call."""
        if self._next_due is None or now < self._next_due:
            return []
        return self._further(now)

    def hurry(self, now: float) -> list[Instruction]:
        """Go to the next rung at once, as when the user insists (a second Ctrl-C). On the last rung this only waits."""
        return [] if self._rung in (Rung.KILL, Rung.DONE) else self._further(now)

    def _further(self, now: float) -> list[Instruction]:
        if self._rung is Rung.KILL:
            self._rung, self._next_due = Rung.DONE, None
            return [Abandon(self.left)]
        return self._enter(_ORDER[_ORDER.index(self._rung) + 1], now)

    def _enter(self, rung: Rung, now: float) -> list[Instruction]:
        if not self._left:
            rung = Rung.DONE
        self._rung = rung
        match rung:
            case Rung.ASK:
                self._next_due = now + self._graces.ask_s
                return [AskToEnd(self.left)]
            case Rung.TERMINATE:
                self._next_due = now + self._graces.terminate_s
                return [Terminate(self.left)]
            case Rung.KILL:
                self._next_due = now + self._graces.kill_s
                return [Kill(self.left)]
            case _:
                return []


_ORDER = list(Rung)
