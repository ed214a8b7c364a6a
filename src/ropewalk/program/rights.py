"""Checks that a unit's process sends its launcher only messages about that unit, whatever names they contain.

Otherwise the process of an actor could report a location for the learner, or store a state for it. Every message that
names a unit (`name`) or one of its nodes (`node`) has to name the sender's own.
"""

from __future__ import annotations

from collections.abc import Collection

from ropewalk.program.messages import HostStatus, OfferRendezvous, UnitName


def speaks_for(message: object) -> tuple[set[UnitName], set[str]]:
    """The units and the nodes that a message is about; both empty if it names neither."""
    match message:
        case HostStatus():
            return {calls.unit for calls in message.nodes}, {calls.node for calls in message.nodes}
        case OfferRendezvous():
            return {UnitName(message.at.unit, 0, message.at.generation)}, set()  # only the first rank sends it
        case _:
            name, node = getattr(message, "name", None), getattr(message, "node", None)
            return {name} if isinstance(name, UnitName) else set(), {node} if node else set()


def may_say(message: object, speaker: UnitName, nodes: Collection[str]) -> bool:
    """Whether a message concerns only the unit whose process sent it.

    Args:
        message: the message received.
        speaker: the unit of the sender.
        nodes: the names of its nodes.
    """
    units, said_of = speaks_for(message)
    return units <= {speaker} and said_of <= set(nodes)
