"""The references to objects of a depot: an object lives while a process may still use it. Pure.

    hold ─▶ held by a connected process ── drop, its end ──▶ no references? ─▶ reaped
    lend ─▶ under way in a pickle ─ hold: it has arrived ──▶
               └─ its sender is gone, and LEASE_S over ────▶

A process counts once, however many handles it has. Each pickle has a ticket, because messages about it come over two
links: its arrival may be reported before its sending. A pickle that is loaded again finds its ticket used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LEASE_S = 60.0
"""Seconds in which a handle must arrive after the process that sent it is gone; and for which an arrival is remembered
whose sending was not reported yet."""


@dataclass(slots=True)
class RefCounts:
    """The references to one object. Connections are any hashable things."""

    holders: dict[object, str] = field(default_factory=dict[object, str])
    """The connections that hold it, with the names of their processes for messages."""
    lent: dict[int, object] = field(default_factory=dict[int, object])
    """By ticket, the connections that have sent a handle that has not arrived yet."""
    leases: dict[int, float] = field(default_factory=dict[int, float])
    """By ticket, the time until which handles may arrive whose senders are gone."""
    early: dict[int, float] = field(default_factory=dict[int, float])
    """By ticket, handles that arrived before their sending was reported, and until when that is remembered."""
    last: list[str] = field(default_factory=list[str])
    """The process that released it last, and how."""

    def hold(self, connection: object, name: str, ticket: int = 0, now: float = 0.0) -> None:
        """Record that a process has a handle.

        Args:
            connection: the connection of the process.
            name: the name of the process, for messages.
            ticket: the ticket of the pickle that the handle came in; 0: it came in none.
            now: the present time in seconds.
        """
        if connection not in self.holders:
            self.last.clear()
        self.holders[connection] = name
        if ticket:
            self.arrive(ticket, now)

    def arrive(self, ticket: int, now: float) -> None:
        """Record that a pickle was loaded."""
        if self.lent.pop(ticket, None) is None and self.leases.pop(ticket, None) is None:
            self.early[ticket] = now + LEASE_S

    def drop(self, connection: object) -> None:
        """Record that a process has no handle any more."""
        name = self.holders.pop(connection, None)
        if name:
            self.last.append(name)

    def lend(self, connection: object, ticket: int) -> None:
        """Record that a process has pickled a handle."""
        if self.early.pop(ticket, None) is None:
            self.lent[ticket] = connection

    def gone(self, connection: object, now: float) -> None:
        """Record that a connection has ended."""
        name = self.holders.pop(connection, None)
        if name:
            self.last.append(f"{name}, which is gone")
        for ticket in [ticket for ticket, lender in self.lent.items() if lender == connection]:
            del self.lent[ticket]
            self.leases[ticket] = now + LEASE_S

    def is_wanted(self, now: float) -> bool:
        """Whether the object may still be used."""
        for expiring in (self.leases, self.early):
            for ticket in [ticket for ticket, until in expiring.items() if until <= now]:
                del expiring[ticket]
        return bool(self.holders or self.lent or self.leases)


__all__ = ["LEASE_S", "RefCounts"]
