"""What a depot keeps, and who refers to it: an object lives while somebody may still use it. Pure.

    hold ─▶ held by a process that is connected ─ drop, its end ─▶ nobody? ─▶ reaped
    lend ─▶ under way in a pickle ─ hold: it has arrived ───────────▶
               └─ its sender is gone, and LEASE_S over ─────────────▶

A process counts once, however many handles it has. Each pickle has a ticket, because the words of it come over two
links: that it has arrived may be heard before that it was sent. A pickle that is loaded again finds its ticket used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: A handle that was sent by a process which is gone since has this long to arrive; and so long is remembered that one
#: has arrived of which nobody has heard that it was sent.
LEASE_S = 60.0


@dataclass(slots=True)
class RefCounts:
    """The references to one object. Connections are any hashable things."""

    holders: dict[object, str] = field(default_factory=dict[object, str])
    """The connections that hold it, with their names for people."""
    lent: dict[int, object] = field(default_factory=dict[int, object])
    """By ticket, the connections that have sent a handle which has not arrived yet."""
    leases: dict[int, float] = field(default_factory=dict[int, float])
    """By ticket, until when handles may arrive whose senders are gone."""
    early: dict[int, float] = field(default_factory=dict[int, float])
    """By ticket, handles that have arrived without having been sent, and until when that is remembered."""
    last: list[str] = field(default_factory=list[str])
    """Who has let go of it last, and how."""

    def hold(self, connection: object, name: str, ticket: int = 0, now: float = 0.0) -> None:
        """A process has a handle.

        Args:
            connection: of the process.
            name: of it, for people.
            ticket: of the pickle that the handle came in; 0: it came in none.
            now: when.
        """
        if connection not in self.holders:
            self.last.clear()
        self.holders[connection] = name
        if ticket:
            self.arrive(ticket, now)

    def arrive(self, ticket: int, now: float) -> None:
        """A pickle was loaded."""
        if self.lent.pop(ticket, None) is None and self.leases.pop(ticket, None) is None:
            self.early[ticket] = now + LEASE_S

    def drop(self, connection: object) -> None:
        """A process has no handle any more."""
        name = self.holders.pop(connection, None)
        if name:
            self.last.append(name)

    def lend(self, connection: object, ticket: int) -> None:
        """A process has pickled a handle."""
        if self.early.pop(ticket, None) is None:
            self.lent[ticket] = connection

    def gone(self, connection: object, now: float) -> None:
        """A connection has ended."""
        name = self.holders.pop(connection, None)
        if name:
            self.last.append(f"{name}, which is gone")
        for ticket in [ticket for ticket, lender in self.lent.items() if lender == connection]:
            del self.lent[ticket]
            self.leases[ticket] = now + LEASE_S

    def is_wanted(self, now: float) -> bool:
        """Whether it may still be used."""
        for expiring in (self.leases, self.early):
            for ticket in [ticket for ticket, until in expiring.items() if until <= now]:
                del expiring[ticket]
        return bool(self.holders or self.lent or self.leases)


__all__ = ["LEASE_S", "RefCounts"]
