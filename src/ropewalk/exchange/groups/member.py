"""`GroupMember`: a service whose replicas form a group over the program's own links.

    class Learner(Member):
        def __init__(self, peers):              # the handle of the node itself: program.declare("learners")
            super().__init__()
            self.peers = peers

        def run(self):
            group = self.group(self.peers)      # a LinkGroup of all replicas
            exchange.bind(model.named_parameters(), group)

It is all that an exchange needs to work between the nodes of a program: links that are up already, encrypted between
hosts, with no address and no port in the user's code. `data_parallel` adds to it that members may die and join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ropewalk.calls.client import Client
from ropewalk.calls.markers import method
from ropewalk.exchange.groups.inbox import Inbox, Packet
from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.groups.link_group import LinkGroup
from ropewalk.program.node_context import current_node


class GroupMember:
    """Base class of services that exchange gradients with their replicas.

    Attributes:
        inbox: where the packets of the others arrive.
    """

    def __init__(self) -> None:
        self.inbox: Inbox = Inbox()

    @method
    def deliver(self, packet: Packet) -> None:
        """Another member sends a packet; called by its group."""
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
        """A group of replicas of this node; every one of them calls this with the same arguments.

        Args:
            peers: the client of this very node.
            replicas: who takes part, in the order of ranks; by default all that the node was started with.
            epoch: larger than that of every group that these members formed before.
            timeout_s: how long a member may let the others wait.
            shaping: makes the links of this member slower than they are, for experiments.

        Raises:
            ExchangeInvalid: this replica does not take part.
        """
        node = current_node()
        replicas = range(node.replicas) if replicas is None else replicas
        rank = replicas.index(node.replica) if node.replica in replicas else -1
        names = [f"{node.name}.{replica}" for replica in replicas]
        sends = [one_way(peers[replica]) for replica in replicas]
        return LinkGroup(rank, names, epoch, sends, self.inbox, timeout_s=timeout_s, shaping=shaping)


def one_way(member: Client) -> Callable[[Packet], object]:
    """A call that brings a packet to a member, and does not wait for it."""
    # Not `send`, which waits for a service that is being started again, however long that takes: a future does not,
    # and who waits for a packet of the dead one hears of it after `timeout_s`.
    deliver = member.deliver
    return lambda packet: deliver.future(packet)
