"""Fan-out: from which host does each host fetch a large blob? Pure.

    launcher ─▶ a ─▶ c ─▶ e ─▶ g      Each host passes on the pieces that it has while the others are still arriving.
        └─────▶ b ─▶ d ─▶ f ─▶ h

The launcher sends two copies, whatever the number of hosts. With P pieces that take t each on one link, N hosts have
all of them after (2 P + N / 2) t. All links but the launcher's are half idle, so a host that falls behind catches up,
and a host whose source is lost goes on at the byte that it has reached, from one that serves another host already.
Where there are many hosts for the pieces, two hosts fetch from each, in trees: after 2 (P + log2 N) t.

Without any other source, a host is served by the launcher, at once. A host waits only while one that has a source and
serves others has no room for it, and that one is watched: no host waits for a host that waits.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

import msgspec

LAUNCHER_SOURCE = ""
"""The launcher, among the sources."""
MOST_COPIES = 2
"""The launcher sends this many copies of a blob if the hosts can do the rest. With one, a slow host could not be told
from a slow launcher."""
MOST_READERS = 2
"""How many hosts fetch from one host at a time at most."""
_PIECES_IN_CHAIN = 2
"""There is a chain while there are at least this many pieces for each host."""
_MARGIN_PIECES = 4
"""A source with less than this many pieces in advance has nothing to give, as it passes on what arrives."""
STALL_S = 5.0
"""A source that has more and has given nothing for this long (seconds) is given up; any other after twice as long."""
_SLOWER = 4
"""A source that gives less than this fraction of the best rate is slow."""
_SLOW_S = 2.0
"""Rates are compared over this long (seconds): what hosts report of their progress is some time old."""
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


class Fetch(msgspec.Struct, frozen=True):
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


class _Reader(msgspec.Struct):
    """A host that has the blob, or is to get it."""

    serves: bool
    """Whether others can fetch from it."""
    reaches_others: bool
    since: float
    """When it got its source."""
    changed: float
    """When it last had more bytes than before, or another source."""
    num_bytes: int = 0
    is_complete: bool = False
    source: str | None = None
    """None: it waits for room at another host, or is complete."""
    given_up: set[str] = msgspec.field(default_factory=set[str])
    """Sources from which it is not to fetch this blob any more."""
    num_complaints: int = 0
    """How many hosts have given it up as their source."""
    is_cautious: bool = False
    """Whether it fetches only from hosts that it has reached before: another one did not answer."""
    num_moves: int = 0
    num_bytes_before: int = 0
    """How many bytes it had when rates were last compared."""


class FanOut:
    """The journey of one blob to all hosts that want it.

    Events return instructions, in the order in which they are to be carried out. A host with a new instruction ends the
    one before it.

    Args:
        size_bytes: size of the blob.
        routes: what is known of the connections between hosts.
        piece_bytes: bytes that a host must have before it passes them on.
    """

    def __init__(self, size_bytes: int, routes: HostRoutes, *, piece_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._routes = routes
        self._margin_bytes = _MARGIN_PIECES * piece_bytes
        self._most_in_chain = size_bytes // piece_bytes // _PIECES_IN_CHAIN
        self._readers: dict[str, _Reader] = {}
        self._num_copies = 0
        self._compared = 0.0
        """When rates were last compared."""
        self._best_gain = 0
        """The most bytes that a host got from one comparison to the next."""

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
            self._readers[host] = _Reader(serves, reaches_others, now, now)
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
        source = reader.source
        if problem is FetchProblem.NO_MEMORY or source == LAUNCHER_SOURCE:
            reader.source = None
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
        self._give_up(reader)
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
            silent_s = now - reader.changed
            if reader.source and (silent_s > 2 * STALL_S or (silent_s > STALL_S and self._has_more(reader))):
                self._give_up(reader)
        moves: list[Fetch] = []
        if self._readers and now - self._compared >= _SLOW_S:
            moves = self._leave_slow_sources(now)
            self._compared = now
        return moves + self._assign(now)

    # Implementation

    def _leave_slow_sources(self, now: float) -> list[Fetch]:
        """Move hosts that get little while another source has more: first one itself, then those that it serves."""
        gains = {host: reader.num_bytes - reader.num_bytes_before for host, reader in self._readers.items()}
        self._best_gain = max(self._best_gain, max(gains.values()))
        slow = {
            host
            for host, reader in self._readers.items()
            if reader.source is not None and reader.since <= self._compared and gains[host] * _SLOWER < self._best_gain
        }
        # Below a slow host all are slow. They stay, unless it had its chance with another source.
        blamed = {host for host in slow if self._readers[host].num_moves or not self._readers[host].source}
        moves: list[Fetch] = []
        for host, reader in self._readers.items():
            reader.num_bytes_before = reader.num_bytes
            source = reader.source
            if not source or host not in slow or reader.num_moves >= _MOST_MOVES:
                continue
            if source in slow and source not in blamed:
                continue
            better = self._best_source(host, reader, ahead_bytes=2 * self._margin_bytes)
            if better is not None:
                reader.num_moves += 1
                moves.append(self._told(host, reader, better, now))
        return moves

    @property
    def _width(self) -> int:
        """How many hosts fetch from one source, if none of these has lost its own."""
        return 1 if len(self._readers) <= self._most_in_chain else MOST_READERS

    def _assign(self, now: float) -> list[Fetch]:
        """Give a source to all hosts that have none, as far as there is room."""
        found: list[Fetch] = []
        for host, reader in self._readers.items():
            if reader.is_complete or reader.source is not None:
                continue
            if self._num_copies < MOST_COPIES or not self._may_be_served(host, reader):
                found.append(self._told(host, reader, LAUNCHER_SOURCE, now))
            elif (source := self._best_source(host, reader)) is not None:
                found.append(self._told(host, reader, source, now))
        return found

    def _told(self, host: str, reader: _Reader, source: str, now: float) -> Fetch:
        self._num_copies += source == LAUNCHER_SOURCE
        reader.source, reader.since, reader.changed = source, now, now
        return Fetch(host, source)

    def _best_source(self, host: str, reader: _Reader, *, ahead_bytes: int = 0) -> str | None:
        """Return the source with room that is nearest to the launcher, or has all of it; None if there is none.

        Args:
            host: name of the host that fetches.
            reader: the same.
            ahead_bytes: how many bytes more than the host the source must have at least.
        """
        num_readers = Counter(each.source for each in self._readers.values())
        most = MOST_READERS if reader.num_bytes else self._width  # one that has begun does not wait

        def rank(name: str) -> tuple[int, ...]:
            other = self._readers[name]
            num, depth = num_readers[name], self._depth(other)
            order = (num, depth) if self._width == 1 else (depth, num)
            return other.num_complaints, other.num_bytes < reader.num_bytes, not other.is_complete, *order

        fitting = (
            name
            for name, other in self._readers.items()
            if num_readers[name] < most
            and (not ahead_bytes or other.num_bytes >= reader.num_bytes + ahead_bytes)
            and name != reader.source
            and self._is_source(host, reader, name, other)
        )
        return min(fitting, key=rank, default=None)

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
        source: str | None = name
        while source and source != without:
            reader = self._readers[source]
            if reader.is_complete:
                return True
            source = reader.source
        return source == LAUNCHER_SOURCE  # None: it waits itself

    def _depth(self, reader: _Reader) -> int:
        depth, source = 0, reader.source
        while source:
            depth, source = depth + 1, self._readers[source].source
        return depth

    def _has_more(self, reader: _Reader) -> bool:
        above = self._readers[reader.source or ""]
        return above.is_complete or above.num_bytes > reader.num_bytes + self._margin_bytes

    def _give_up(self, reader: _Reader) -> None:
        """Leave a source for good; others are sent there after all others only."""
        source, reader.source = reader.source or "", None
        reader.given_up.add(source)
        if above := self._readers.get(source):
            above.num_complaints += 1
