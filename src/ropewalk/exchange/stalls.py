"""Stalls: which members have not arrived, and which of their gradients are not ready.

    rank 0 ── begin ── ready a ── ready b ── sending bucket 0 ── waits ...
    rank 1 ── begin ── ready a ──────────────────────────────────▶ "rank 1: step 7, b is not ready"
             │ each member posts its `Note` on the group's board once a second; who waits too long reads them all

The question users of Horovod ask most is why a step hangs. A collective cannot know; the members' notes do.
`Progress` is a table, `diagnose` a pure function of notes, `StallWatch` the thread that posts and warns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from ropewalk.errors import ExchangeStalled
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.groups.group import Group

log = logging.getLogger(__name__)

#: How many names of gradients a message shows for each rank.
_SHOWN = 5


class Note(msgspec.Struct, frozen=True):
    """How far one member is, as it posts it.

    Attributes:
        step: the last step it began; -1 before the first.
        active: whether it is in that step still.
        waiting: whether its backward is over, and it waits for the others: nothing is missing of it any more.
        missing: names of gradients that are not ready, in the order of buckets.
        num_done: buckets of this step that are done.
        beat: counts its notes; one that does not count on has stopped.
    """

    step: int = -1
    active: bool = False
    waiting: bool = False
    missing: tuple[str, ...] = ()
    num_done: int = 0
    beat: int = 0


class Progress:
    """How far this member is in its step. Any thread may write: each call is one change of one thing.

    Args:
        layouts: the buckets.
        clock: seconds.
    """

    def __init__(self, layouts: Sequence[Layout], clock: Callable[[], float] = time.monotonic) -> None:
        self._names = tuple(tuple(layout.names) for layout in layouts)
        self._clock = clock
        self._ready: set[str] = set()
        self._sending: set[int] = set()
        self._done: set[int] = set()
        self._step = -1
        self._active = False
        self._waiting = False
        self._beat = 0
        self._since: float | None = None

    def begin(self, step: int) -> None:
        """A step begins; no gradient is ready."""
        self._ready, self._sending, self._done = set(), set(), set()
        self._step, self._active, self._waiting, self._since = step, True, False, None

    def ready(self, name: str) -> None:
        """A gradient is ready."""
        self._ready.add(name)

    def sending(self, bucket: int) -> None:
        """A bucket is given to the group: from now on this member waits for the others."""
        self._sending.add(bucket)
        if self._since is None:
            self._since = self._clock()

    def done(self, bucket: int) -> None:
        """A bucket has come back."""
        self._sending.discard(bucket)
        self._done.add(bucket)
        self._since = self._clock() if self._waiting or self._sending else None

    def waiting(self) -> None:
        """The backward is over: what is not ready now counts as zeros."""
        self._waiting = True
        if self._since is None:
            self._since = self._clock()

    def finish(self) -> None:
        """The step is over, for good or ill."""
        self._active, self._since = False, None

    @property
    def step(self) -> int:
        """The last step that began; -1 before the first."""
        return self._step

    @property
    def waited_s(self) -> float:
        """For how long this member has waited for a bucket; 0.0 where it does not."""
        since = self._since
        return 0.0 if since is None else self._clock() - since

    def note(self) -> Note:
        """A note for the board."""
        self._beat += 1
        missing: tuple[str, ...] = ()
        if self._active and not self._waiting:
            missing = tuple(name for names in self._names for name in names if name not in self._ready)
        return Note(self._step, self._active, self._waiting, missing, len(self._done), self._beat)


class Missing(msgspec.Struct, frozen=True):
    """A member that others wait for.

    Attributes:
        rank: its rank.
        tensors: its gradients that are not ready, as far as that is known.
        words: where it is, for people.
    """

    rank: int
    tensors: tuple[str, ...]
    words: str


def diagnose(notes: Sequence[Note | None], rank: int, earlier: Sequence[Note | None] = ()) -> tuple[Missing, ...]:
    """Say for whom the member `rank` waits.

    Args:
        notes: the last note of each member.
        rank: who waits.
        earlier: notes read some seconds before; a member whose note is still the same has stopped.

    Returns:
        The members that have not come as far as `rank`; none if all have, and the links between them are to blame.
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


def _where(note: Note, step: int) -> str:
    """Why others wait for this member in `step`; empty if they do not."""
    if note.step > step or (note.step == step and not note.active):
        return ""
    if note.step < step:
        if note.active:
            return f"is still in step {note.step}" + (f", {_shown(note.missing)}" if note.missing else "")
        return f"has not begun step {step}" + (f", its last was {note.step}" if note.step >= 0 else "")
    return _shown(note.missing) if note.missing else ""


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} of its gradients not ready: {', '.join(names[:_SHOWN])}{more}"


def describe(step: int, waited_s: float, missing: Sequence[Missing], size: int) -> str:
    """A stall in words, for a warning and for `ExchangeStalled`."""
    head = f"step {step} has waited {waited_s:.1f} s"
    if not missing:
        return f"{head}; all {size} members have arrived, so a link between them hangs or is slow"
    ranks = ", ".join(str(one.rank) for one in missing)
    lines = [f"{head} for {'rank' if len(missing) == 1 else 'ranks'} {ranks} of {size}"]
    return "\n".join([*lines, *(f"  rank {one.rank} {one.words}" for one in missing)])


class StallWatch:
    """Posts how far this member is, and warns when it waits for long.

    Args:
        progress: of this member.
        group: whose board is used; without one nothing is posted, and only the waiting itself is told.
        warn_after_s: seconds of waiting after which a warning names who is missing, and again each time as long.
        interval_s: seconds between two notes.
        warn: called with the text.
    """

    def __init__(
        self,
        progress: Progress,
        group: Group,
        warn_after_s: float = 30.0,
        interval_s: float = 1.0,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self._progress = progress
        self._group = group
        self._warn_after_s = warn_after_s
        self._interval_s = min(interval_s, warn_after_s / 2)
        self._warn = warn
        self._warned = 0
        self._earlier: tuple[float, list[Note | None]] | None = None  # when the wait began to be long, and the notes
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to post, in a thread; not in a group of one."""
        if self._group.size > 1 and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ropewalk-stalls", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def missing(self) -> tuple[Missing, ...]:
        """For whom this member waits, as far as the board says."""
        earlier: list[Note | None] = []
        # Only a member that let two notes fall out has stopped for sure.
        if self._earlier is not None and self._progress.waited_s > self._earlier[0] + 2.5 * self._interval_s:
            earlier = self._earlier[1]
        return diagnose(self._read(), self._group.rank, earlier)

    def named(self, error: ExchangeStalled) -> ExchangeStalled:
        """The error of a group, which knows only that it has waited, with who and what is missing."""
        missing = self.missing()
        waited_s = error.waited_s or self._progress.waited_s
        text = describe(self._progress.step, waited_s, missing, self._group.size)
        return ExchangeStalled(
            f"{text}\n{_ADVICE}",
            ranks=tuple(one.rank for one in missing) or error.ranks,
            tensors=tuple((one.rank, name) for one in missing for name in one.tensors),
            waited_s=waited_s,
        )

    def _run(self) -> None:
        while True:
            try:
                self._turn()
            except Exception:
                # A store that is closing at the end of a program; who reads the board then sees an old note.
                log.debug("cannot post how far rank %d is", self._group.rank, exc_info=True)
            if self._closing.wait(self._interval_s):
                return

    def _turn(self) -> None:
        if self._group.board is not None:
            self._group.board.post(msgspec.json.encode(self._progress.note()))
        waited_s = self._progress.waited_s
        if waited_s < self._interval_s:
            self._earlier = None
        elif self._earlier is None:
            self._earlier = (waited_s, self._read())
        periods = int(waited_s / self._warn_after_s)
        if periods > self._warned:
            self._warn(describe(self._progress.step, waited_s, self.missing(), self._group.size))
        self._warned = periods

    def _read(self) -> list[Note | None]:
        """All notes; the own one is of this moment."""
        notes: list[Note | None] = [None] * self._group.size
        if self._group.board is not None:
            notes = [msgspec.json.decode(note, type=Note) if note else None for note in self._group.board.read()]
        notes[self._group.rank] = self._progress.note()
        return notes


_ADVICE = (
    "Every member must call backward and step equally often: where one has fewer batches use join(), where one "
    "leaves the loop early let all leave it. A longer timeout_s helps only a member that is slow."
)
