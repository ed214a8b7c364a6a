"""Fan-out: from which host does each host fetch a large blob? Pure.

    launcher ─▶ a ─▶ c ─▶ g      Each host passes on what it has while the rest is still arriving, so one copy for each
        └─────▶ b    └──▶ h      level of the tree is under way at a time, not one after the other.

A link that sends to two hosts gives each half of its rate. So a blob is at all hosts after about twice the time of one
link, whatever their number, and the launcher sends two copies. A host whose source is lost goes on at the byte that it
has reached, from another one.

Without any other source, a host is served by the launcher, at once. A host waits only while one that has a source and
serves others has no room for it, and that one is watched: no host waits for a host that waits.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

LAUNCHER_SOURCE = ""
"""The launcher, among the sources."""
MOST_READERS = 2
"""How many hosts fetch from one host at a time, and how many copies the launcher sends if the hosts can do the rest."""
STALL_S = 5.0
"""A source that has given nothing for this long (seconds), although it has more, is given up."""
_SLOWER = 4
"""A source that gives less than this fraction of the best rate is slow."""
_SLOW_S = 1.5
"""A new source gets this long (seconds) before it may count as slow."""
_MOST_FAILURES = 2
"""A host with this many failed connections to or from others, and none that worked, counts as cut off from them."""
_MOST_MOVES = 2
"""A host is moved away from slow sources at most this often: afterwards its own link is to blame."""


class FetchProblem(enum.Enum):
    """Why a host could not fetch a blob from a source."""

    UNREACHABLE = "unreachable"
    """No connection was made."""
    LOST = "lost"
    """The connection ended, or the source does not have the blob any more."""
    CORRUPT = "corrupt"
    """The bytes are not those that the name of the blob promises."""
    NO_MEMORY = "no memory"
    """This host cannot hold it now."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """An instruction: a host is to fetch the rest of the blob from a source."""

    host: str
    source: str
    """A host; `LAUNCHER_SOURCE` is the launcher."""


class HostRoutes:
    """Which hosts have reached which others, in all fan-outs of a session.

    A host for which no connection has worked is not sent to one unknown host after the other: each attempt takes
    seconds.
    """

    def __init__(self) -> None:
        self._worked: set[tuple[str, str]] = set()
        self._failed: set[tuple[str, str]] = set()
        self._cut_off: frozenset[str] = frozenset()

    def note(self, host: str, source: str, *, works: bool) -> None:
        """Note that a host has reached a source, or has not."""
        mine, other = (self._worked, self._failed) if works else (self._failed, self._worked)
        if (host, source) not in mine:
            mine.add((host, source))
            other.discard((host, source))
            self._weigh()

    def may_work(self, host: str, source: str) -> bool:
        """Return whether it is worth trying to reach a source from a host."""
        if (host, source) in self._worked:
            return True
        return (host, source) not in self._failed and not self._cut_off & {host, source}

    def works(self, host: str, source: str) -> bool:
        """Return whether a host has reached a source before."""
        return (host, source) in self._worked

    def forget(self, host: str) -> None:
        """Forget a host that is gone."""
        self._worked = {pair for pair in self._worked if host not in pair}
        self._failed = {pair for pair in self._failed if host not in pair}
        self._weigh()

    def _weigh(self) -> None:
        failures = Counter(host for pair in self._failed for host in pair)
        connected = {host for pair in self._worked for host in pair}
        often = {host for host, count in failures.items() if count >= _MOST_FAILURES}
        self._cut_off = frozenset(often - connected)


@dataclass(slots=True)
class _Reader:
    """A host that has the blob, or is to get it."""

    serves: bool
    """Whether others can fetch from it."""
    reaches_others: bool
    num_bytes: int = 0
    is_complete: bool = False
    source: str | None = None
    """None: it waits for room at another host, or is complete."""
    given_up: set[str] = field(default_factory=set[str])
    """Sources from which it is not to fetch this blob any more."""
    is_cautious: bool = False
    """Whether it fetches only from hosts that it has reached before: another one did not answer."""
    num_moves: int = 0
    since: float = 0.0
    """When it got its source."""
    changed: float = 0.0
    """When it last had more bytes than before, or another source."""
    bytes_at_look: int = 0
    gain: int = 0
    """How many bytes it got between the last two looks."""


class FanOut:
    """The journey of one blob to all hosts that want it.

    Events return instructions, in the order in which they are to be carried out. A host with a new instruction ends the
    one before it.

    Args:
        size_bytes: size of the blob.
        routes: what is known of the connections between hosts.
        margin_bytes: a source with less than this in advance has nothing to give, as it passes on what arrives.
    """

    def __init__(self, size_bytes: int, routes: HostRoutes, *, margin_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._routes = routes
        self._margin_bytes = margin_bytes
        self._readers: dict[str, _Reader] = {}
        self._num_copies = 0

    @property
    def hosts(self) -> Iterable[str]:
        """The hosts that have the blob, or are to get it."""
        return self._readers.keys()

    @property
    def is_settled(self) -> bool:
        """Whether all of them have it, so that no `look` is needed."""
        return all(reader.is_complete for reader in self._readers.values())

    @property
    def num_copies(self) -> int:
        """How many copies the launcher has begun to send."""
        return self._num_copies

    # Events

    def want(self, host: str, now: float, *, serves: bool, reaches_others: bool) -> list[Fetch]:
        """Handle a host that needs the blob.

        Args:
            host: name of the host.
            now: monotonic time in seconds.
            serves: whether other hosts may be able to fetch from it.
            reaches_others: whether it may be able to fetch from other hosts.
        """
        if host not in self._readers:
            self._readers[host] = _Reader(serves, reaches_others, changed=now)
        return self._assign(now)

    def progressed(self, host: str, num_bytes: int, now: float) -> None:
        """Note how many bytes a host has by now."""
        reader = self._readers.get(host)
        if reader and num_bytes > reader.num_bytes:
            reader.num_bytes, reader.changed = num_bytes, now

    def arrived(self, host: str, now: float) -> list[Fetch]:
        """Handle a host that has all of it, and has compared it with its name."""
        reader = self._readers.get(host)
        if reader is None or reader.is_complete:
            return []
        if reader.source:
            self._routes.note(host, reader.source, works=True)
        reader.is_complete, reader.num_bytes, reader.source = True, self._size_bytes, None
        return self._assign(now)

    def failed(self, host: str, problem: FetchProblem, now: float) -> list[Fetch]:
        """Handle a host that could not fetch the blob from the source that it was told last."""
        reader = self._readers.get(host)
        if reader is None or reader.source is None:
            return []
        source, reader.source = reader.source, None
        if problem is FetchProblem.NO_MEMORY or source == LAUNCHER_SOURCE:
            reader.num_bytes *= problem is FetchProblem.LOST
            return []  # another source would not help: it is tried again at the next look
        match problem:
            case FetchProblem.CORRUPT:
                # Nobody knows which of those above has changed it. From the launcher it comes without a third party.
                reader.num_bytes, reader.reaches_others = 0, False
                if above := self._readers.get(source):
                    above.serves = False
            case FetchProblem.UNREACHABLE:
                self._routes.note(host, source, works=False)
                reader.is_cautious = True
            case FetchProblem.LOST:
                pass
        reader.given_up.add(source)
        return self._assign(now)

    def gone(self, host: str, now: float) -> list[Fetch]:
        """Handle a host that was lost, or needs the blob no longer."""
        if self._readers.pop(host, None) is None:
            return []
        for reader in self._readers.values():
            if reader.source == host:
                reader.source = None
        return self._assign(now)

    def look(self, now: float) -> list[Fetch]:
        """Look at all hosts, regularly: those whose source gives nothing, or little, get another one."""
        for reader in self._readers.values():
            reader.gain = reader.num_bytes - reader.bytes_at_look
            reader.bytes_at_look = reader.num_bytes
        best = max((reader.gain for reader in self._readers.values() if reader.source is not None), default=0)
        moves: list[Fetch] = []
        for host, reader in self._readers.items():
            if reader.source in (None, LAUNCHER_SOURCE):
                continue
            if now - reader.changed > STALL_S and self._has_more(reader.source, reader):
                reader.given_up.add(reader.source)
                reader.source = None
            elif reader.gain * _SLOWER < best and now - reader.since > _SLOW_S and reader.num_moves < _MOST_MOVES:
                better = self._best_source(host, reader, ahead_bytes=2 * self._margin_bytes)
                if better is not None:
                    reader.num_moves += 1
                    moves.append(self._told(host, reader, better, now))
        return moves + self._assign(now)

    # Implementation

    def _assign(self, now: float) -> list[Fetch]:
        """Give a source to all hosts that have none, as far as there is room."""
        found: list[Fetch] = []
        for host, reader in self._readers.items():
            if reader.is_complete or reader.source is not None:
                continue
            if self._num_copies < MOST_READERS or not self._may_be_served(host, reader):
                found.append(self._told(host, reader, LAUNCHER_SOURCE, now))
            elif (source := self._best_source(host, reader)) is not None:
                found.append(self._told(host, reader, source, now))
        return found

    def _told(self, host: str, reader: _Reader, source: str, now: float) -> Fetch:
        self._num_copies += source == LAUNCHER_SOURCE
        reader.source, reader.since, reader.changed = source, now, now
        return Fetch(host, source)

    def _best_source(self, host: str, reader: _Reader, *, ahead_bytes: int = 0) -> str | None:
        """Return the source with room that is nearest to the launcher, complete ones first; None if there is none.

        Args:
            host: name of the host that fetches.
            reader: the same.
            ahead_bytes: how many bytes more than the host the source must have at least.
        """
        num_readers = Counter(each.source for each in self._readers.values())
        ranks = {
            name: (not other.is_complete, self._depth(other), num_readers[name])
            for name, other in self._readers.items()
            if num_readers[name] < MOST_READERS
            and (not ahead_bytes or other.num_bytes >= reader.num_bytes + ahead_bytes)
            and name != reader.source
            and self._is_source(host, reader, name, other)
        }
        return min(ranks, key=ranks.__getitem__, default=None)

    def _may_be_served(self, host: str, reader: _Reader) -> bool:
        """Return whether there is a source for a host besides the launcher, with room or without."""
        return any(self._is_source(host, reader, name, other) for name, other in self._readers.items())

    def _is_source(self, host: str, reader: _Reader, name: str, other: _Reader) -> bool:
        if not (reader.reaches_others and other.serves) or name in reader.given_up:
            return False
        reaches = self._routes.works if reader.is_cautious else self._routes.may_work
        return reaches(host, name) and self._is_fed(name, without=host)

    def _is_fed(self, name: str, *, without: str) -> bool:
        """Return whether a host has the blob, or gets it from the launcher or a host that has it, by hosts but one."""
        while name and name != without:
            reader = self._readers[name]
            if reader.is_complete:
                return True
            if reader.source is None:
                return False
            name = reader.source
        return name == LAUNCHER_SOURCE

    def _depth(self, reader: _Reader) -> int:
        depth, source = 0, reader.source
        while source:
            depth, source = depth + 1, self._readers[source].source
        return depth

    def _has_more(self, source: str, reader: _Reader) -> bool:
        above = self._readers[source]
        return above.is_complete or above.num_bytes > reader.num_bytes
