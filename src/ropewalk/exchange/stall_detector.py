"""Stalls: finds which members have not arrived, and which of their gradients are not ready.

    rank 0 ── begin ── ready a ── ready b ── waits ...
    rank 1 ── begin ── ready a ──────────────────────────────────▶ "rank 1: step 7, b is not ready"
             │ each member posts its `ProgressNote` on the group's board once a second; a member that waits reads all

The most frequent question of Horovod's users is why a step hangs. A collective cannot know, but the members' notes can
tell. `StepProgress` is a table, `diagnose` a pure function of notes, `StallDetector` the observer that posts and warns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from ropewalk.errors import ExchangeStalled
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.observers import Observer
from ropewalk.quantities import listed

logger = logging.getLogger(__name__)

_SHOWN = 5
"""Number of gradient names that a message shows for each rank."""


class ProgressNote(msgspec.Struct, frozen=True):
    """The progress of one member, as it posts it.

    Attributes:
        step: the last step that the member began; -1 before the first.
        active: whether the member is still in that step.
        missing: names of gradients that are not ready; none once its backward is over, because they then count as
            zeros.
        beat: heartbeat counter, one more with each note; a member whose counter stands still has stopped.
    """

    step: int = -1
    active: bool = False
    missing: tuple[str, ...] = ()
    beat: int = 0


class StepProgress:
    """The progress of this member in its step. Any thread may write: each call makes one atomic change.

    Args:
        names: names of all gradients of a step.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._ready: set[str] = set()
        self._active = False
        self._beat = 0
        self._waiting = False
        self.step = -1

    def begin(self, step: int) -> None:
        """Begin a step; no gradient is ready."""
        self._ready = set()
        self.step, self._active, self._waiting = step, True, False

    def ready(self, name: str) -> None:
        """Record that a gradient is ready."""
        self._ready.add(name)

    def waiting(self) -> None:
        """Record that this member has finished its backward, and waits for the others."""
        self._waiting = True

    def finish(self) -> None:
        """Record that the step is over, whether it succeeded or failed."""
        self._active = False

    def note(self) -> ProgressNote:
        """Return a note for the board."""
        self._beat += 1
        missing: tuple[str, ...] = ()
        if self._active and not self._waiting:
            missing = tuple(name for name in self._names if name not in self._ready)
        return ProgressNote(self.step, self._active, missing, self._beat)


class Missing(msgspec.Struct, frozen=True):
    """A member that others wait for.

    Attributes:
        rank: its rank.
        tensors: names of its gradients that are not ready, as far as they are known.
        words: where it is, as text for people.
    """

    rank: int
    tensors: tuple[str, ...]
    words: str


def diagnose(
    notes: Sequence[ProgressNote | None], rank: int, earlier: Sequence[ProgressNote | None] = ()
) -> tuple[Missing, ...]:
    """Find the members that the member `rank` waits for.

    Args:
        notes: the last note of each member, by rank; None where there is none.
        rank: rank of the waiting member.
        earlier: notes read some seconds earlier; a member whose note has not changed has stopped.

    Returns:
        The members that have not come as far as `rank`. None of them if all have; then a link between them is to blame.
    """
    own = notes[rank]
    if own is None:
        return ()
    missing: list[Missing] = []
    for member, note in enumerate(notes):
        if member == rank:
            continue
        if note is None:
            missing.append(Missing(member, (), "has not begun: it has never posted how far it is"))
            continue
        words = _where(note, own.step)
        if words:
            same = member < len(earlier) and earlier[member] == note
            stopped = "; it has stopped posting (stopped, dead, or cut off)" if same else ""
            missing.append(Missing(member, note.missing if note.step == own.step else (), words + stopped))
    return tuple(missing)


def _where(note: ProgressNote, step: int) -> str:
    """Say why others wait for this member in `step`; empty if they do not."""
    if note.step > step or (note.step == step and not note.active):
        return ""
    if note.step < step:
        if note.active:
            return f"is still in step {note.step}" + (f", {_shown(note.missing)}" if note.missing else "")
        return f"has not begun step {step}" + (f", its last was {note.step}" if note.step >= 0 else "")
    return _shown(note.missing) if note.missing else ""


def _shown(names: Sequence[str]) -> str:
    return f"{len(names)} of its gradients not ready: {listed(names, _SHOWN)}"


def describe(step: int, waited_s: float, missing: Sequence[Missing], size: int) -> str:
    """Describe a stall in words, for a warning and for `ExchangeStalled`."""
    head = f"step {step} has waited {waited_s:.1f} s"
    if not missing:
        return f"{head}; all {size} members have arrived, so a link between them hangs or is slow"
    ranks = ", ".join(str(one.rank) for one in missing)
    lines = [f"{head} for {'rank' if len(missing) == 1 else 'ranks'} {ranks} of {size}"]
    return "\n".join([*lines, *(f"  rank {one.rank} {one.words}" for one in missing)])


class _MemberWait:
    """One wait of this member for the others, from the end of its backward."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.num_warnings = 0
        self.earlier: tuple[float, list[ProgressNote | None]] | None = (
            None  # when the notes were first read, and what they were
        )


class StallDetector(Observer):
    """Posts this member's progress, warns when it waits for long, and adds names to a group's bare timeout.

    A thread of its own does the first two, because a wait may be in a hook of DDP, where no other thread watches the
    clock.

    Args:
        warn_after_s: seconds of waiting after which a warning names the missing members, repeated after each further
            wait of the same length.
        interval_s: seconds between two notes.
        warn: called with the text of a warning.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        warn_after_s: float = 30.0,
        interval_s: float = 1.0,
        warn: Callable[[str], None] = logger.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn_after_s = warn_after_s
        self._interval_s = min(interval_s, warn_after_s / 2)
        self._warn = warn
        self._clock = clock
        self._wait: _MemberWait | None = None
        self._progress = StepProgress(())
        self._group: Group | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<StallDetector warn_after_s={self._warn_after_s:g}>"

    def bind(self, layouts: Sequence[Layout], group: Group) -> None:
        if self._thread is not None and group is self._group:
            return  # the same parameters in other buckets, perhaps within a step
        self.close()
        self._progress, self._group = StepProgress([name for layout in layouts for name in layout.names]), group
        if group.size > 1:
            self._closing = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(group, self._progress, self._closing), name="ropewalk-stalls", daemon=True
            )
            self._thread.start()

    def begin(self, record: StepRecord) -> None:
        self._wait = None
        self._progress.begin(record.step)

    def ready(self, name: str) -> None:
        self._progress.ready(name)

    def ended(self, step: int) -> None:
        self._wait = None
        self._progress.finish()

    def failed(self, error: BaseException) -> None:
        self._wait = None
        self._progress.finish()

    def waiting(self, waited_s: float) -> None:
        self._progress.waiting()
        if self._wait is None:
            self._wait = _MemberWait(self._clock() - waited_s)

    def look(self) -> None:
        """Warn if the wait has become long; the thread calls this once per interval."""
        wait = self._wait
        if wait is None or (waited_s := self._clock() - wait.began) < self._interval_s:
            return
        if wait.earlier is None and (notes := self._read()) is not None:
            wait.earlier = self._clock(), notes
        num_periods = int(waited_s / self._warn_after_s)
        if num_periods > wait.num_warnings:
            wait.num_warnings = num_periods
            text, _ = self._found(wait, waited_s)
            if wait is self._wait:  # it did not end meanwhile
                self._warn(text)

    def explained(self, error: ExchangeStalled) -> ExchangeStalled:
        wait = self._wait or _MemberWait(self._clock() - error.waited_s)
        waited_s = max(error.waited_s, self._clock() - wait.began)
        text, missing = self._found(wait, waited_s)
        return ExchangeStalled(
            f"{text}\n{_ADVICE}",
            ranks=tuple(one.rank for one in missing) or error.ranks,
            tensors=tuple((one.rank, name) for one in missing for name in one.tensors),
            waited_s=waited_s,
        )

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closing.set()
        if self._thread is not None:
            # A board that does not answer may block the thread for longer; the thread then ends by itself.
            self._thread.join(2 * self._interval_s)
            self._thread = None

    def _run(self, group: Group, progress: StepProgress, closing: threading.Event) -> None:
        while True:
            try:
                if group.board is not None:
                    group.board.post(msgspec.json.encode(progress.note()))
            except Exception:
                # The store is closed at the end of a program; a member that reads the board then sees an old note.
                logger.debug("cannot post how far rank %d is", group.rank, exc_info=True)
            if closing.wait(self._interval_s):
                return
            self.look()

    def _found(self, wait: _MemberWait, waited_s: float) -> tuple[str, Sequence[Missing]]:
        """Describe a wait in words, and return the members it is for, as far as the board tells."""
        rank, size = (self._group.rank, self._group.size) if self._group is not None else (0, 1)
        notes = self._read()
        if notes is None:
            return f"step {self._progress.step} has waited {waited_s:.1f} s, and {_UNREADABLE}", ()
        earlier: list[ProgressNote | None] = []
        # Only a member that missed two notes has certainly stopped.
        if wait.earlier is not None and self._clock() > wait.earlier[0] + 2.5 * self._interval_s:
            earlier = wait.earlier[1]
        missing = diagnose(notes, rank, earlier)
        return describe(self._progress.step, waited_s, missing, size), missing

    def _read(self) -> list[ProgressNote | None] | None:
        """Return all notes, with this member's as of now; None where the board cannot be read."""
        group = self._group
        if group is None:
            return [self._progress.note()]
        notes: list[ProgressNote | None] = [None] * group.size
        if group.board is not None:
            try:
                notes = [msgspec.json.decode(note, type=ProgressNote) if note else None for note in group.board.read()]
            except Exception:
                logger.debug("cannot read how far the others are", exc_info=True)
                return None
        notes[group.rank] = self._progress.note()
        return notes


_UNREADABLE = (
    "how far the others are cannot be read either: the process that keeps their notes, in torch.distributed mostly "
    "that of rank 0, does not answer (stopped, dead, or cut off)"
)

_ADVICE = (
    "Every member must call backward and step equally often: where one has fewer batches use join(), where one "
    "leaves the loop early let all leave it. A longer timeout helps only where a member is slow."
)
