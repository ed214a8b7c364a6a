"""What a depot keeps, and who refers to it: an object lives while somebody may still use it. Pure.

    hold ─▶ held by a process that is connected ─ drop, its end ─▶ nobody? ─▶ reaped
    lend ─▶ under way in a pickle ─ hold: it has arrived ───────────▶
               └─ its sender is gone, and LEASE_S over ─────────────▶

A process counts once, however many handles it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: A handle that was sent by a process which is gone since has this long to arrive.
LEASE_S = 60.0


@dataclass(slots=True)
class Kept:
    """The references to one object. Connections are any hashable things."""

    holders: dict[object, str] = field(default_factory=dict[object, str])
    """The connections that hold it, with their names for people."""
    lent: list[object] = field(default_factory=list[object])
    """The connections that have sent a handle which has not arrived yet, one entry for each."""
    leases: list[float] = field(default_factory=list[float])
    """Until when handles may arrive whose senders are gone."""
    last: list[str] = field(default_factory=list[str])
    """Who has let go of it last, and how."""

    def hold(self, connection: object, name: str) -> None:
        """A process has a handle: one that was under way, perhaps."""
        if connection not in self.holders:
            self.last.clear()
        self.holders[connection] = name
        if self.lent:
            self.lent.pop(0)
        elif self.leases:
            self.leases.pop(0)

    def drop(self, connection: object) -> None:
        """A process has no handle any more."""
        name = self.holders.pop(connection, None)
        if name:
            self.last.append(name)

    def lend(self, connection: object) -> None:
        """A process has pickled a handle."""
        self.lent.append(connection)

    def gone(self, connection: object, now: float) -> None:
        """A connection has ended."""
        name = self.holders.pop(connection, None)
        if name:
            self.last.append(f"{name}, which is gone")
        num_lent = self.lent.count(connection)
        if num_lent:
            self.lent = [other for other in self.lent if other != connection]
            self.leases += [now + LEASE_S] * num_lent

    def is_wanted(self, now: float) -> bool:
        """Whether it may still be used."""
        self.leases = [lease for lease in self.leases if lease > now]
        return bool(self.holders or self.lent or self.leases)


__all__ = ["LEASE_S", "Kept"]
