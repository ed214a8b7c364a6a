"""`GroupMember`: a service whose replicas form a group over the program's own links.

    class Learner(GroupMember):
        def __init__(self, peers):              # the handle of the node itself: program.declare("learners")
            super().__init__()
            self.peers = peers

        def run(self):
            group = self.group(self.peers)      # a LinkGroup of all replicas
            exchange.bind(model.named_parameters(), group)

This is all that an exchange needs to work between the nodes of a program: links that exist already, encrypted between
hosts, with no address and no port in the user's code. `data_parallel` adds members that may die and join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ropewalk.calls.client import Client
from ropewalk.calls.markers import method
from ropewalk.exchange.groups.inbox import Inbox, Packet
from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.groups.link_group import LinkGroup
from ropewalk.program.node_context import current_node


class GroupMember:
    """Base class of services that exchange gradients with their replicas.

    Attributes:
        inbox: where the packets of the other members arrive.
    """

    def __init__(self) -> None:
        self.inbox: Inbox = Inbox()

    @method
    def deliver(self, packet: Packet) -> None:
        """Receive a packet of another member; called by the sender's group."""
        self.inbox.deliver(packet)

    def group(
        self,
        peers: Client,
        replicas: Sequence[int] | None = None,
        *,
        epoch: int = 0,
        timeout_s: float = 300.0,
        shaping: LinkEmulation | None = None,
    ) -> LinkGroup:
        """Form a group of replicas of this node; every one of them calls this with the same arguments.

        Args:
            peers: the client of this node itself.
            replicas: replica numbers of the members, in the order of ranks; by default all that the node was started
                with.
            epoch: larger than that of every group that these members formed before.
            timeout_s: seconds to wait for a member before a collective fails.
            shaping: makes the links of this member slower than they are, for experiments.

        Returns:
            The group.

        Raises:
            ExchangeInvalid: this replica is not in `replicas`.
        """
        node = current_node()
        replicas = range(node.replicas) if replicas is None else replicas
        rank = replicas.index(node.replica) if node.replica in replicas else -1
        names = [f"{node.name}.{replica}" for replica in replicas]
        sends = [one_way(peers[replica]) for replica in replicas]
        return LinkGroup(rank, names, epoch, sends, self.inbox, timeout_s=timeout_s, shaping=shaping)


def one_way(member: Client) -> Callable[[Any], Future[Any]]:
    """Return a function that calls `deliver` of a member with a packet or a message, without waiting."""
    # Not `send`, which waits for a service that is being restarted, however long that takes. A future does not, and a
    # member that waits for a packet of the dead one gets an error after `timeout_s`.
    deliver = member.deliver
    return lambda message: deliver.future(message)
