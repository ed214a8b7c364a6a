"""What a unit's process may say to its launcher: only what concerns the unit, whatever names stand in a message.

The process of an actor that said where the learner is, or brought a state to keep for it, would speak for another one.
Every message that names a unit (`name`) or one of its nodes (`node`) has to name those of its speaker.
"""

from __future__ import annotations

from collections.abc import Collection

from ropewalk.program.messages import HostStatus, OfferRendezvous, UnitName


def speaks_for(message: object) -> tuple[set[UnitName], set[str]]:
    """The units, and the nodes, that a message says something of; both empty if it concerns its speaker as such."""
    match message:
        case HostStatus():
            return {calls.unit for calls in message.nodes}, {calls.node for calls in message.nodes}
        case OfferRendezvous():
            return {UnitName(message.at.unit, 0, message.at.generation)}, set()  # only the first rank says that
        case _:
            name, node = getattr(message, "name", None), getattr(message, "node", None)
            return {name} if isinstance(name, UnitName) else set(), {node} if node else set()


def may_say(message: object, speaker: UnitName, nodes: Collection[str]) -> bool:
    """Whether a message concerns nobody but the unit whose process says it.

    Args:
        message: that has come.
        speaker: the unit.
        nodes: the names of its nodes.
    """
    units, said_of = speaks_for(message)
    return units <= {speaker} and said_of <= set(nodes)
