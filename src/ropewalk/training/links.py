"""Links between the workers of a plan: through slots in shared memory on one host, by calls to other hosts.

    main thread of a worker                                         main thread of another
    send(tag, parcel) ─▶ encode ─▶ slot ─▶ its notifier ──────────▶ wait, has, receive(tag) ─▶ tensors in the slot
                              └──▶ call, sent by another thread ──▶ deliver ─▶ our own notifier ─▶ the same

How they travel is the business of transports (`link_transports.py`): each worker is reached by the first that can.

Messages are identified by their tag, never by the order of arrival. Besides the parcels of stages there are
parts of sums between workers, and credits if links are bounded. All of them belong to one epoch, that is to
one object: messages of an earlier epoch that are under way end with it.
"""

from __future__ import annotations

import os
import select
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import torch

from ropewalk.errors import ScheduleInvalid
from ropewalk.exchange.tensor_codec import TensorCodec
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.stages.gradient_sums import Contributor, SumKey
from ropewalk.pipeline.stages.in_memory_links import LinkMessage, Tag
from ropewalk.processes import bootstrap
from ropewalk.training.far_links import FarLinks
from ropewalk.training.link_transports import (
    Arrival,
    Deliver,
    Endpoint,
    FarMessage,
    LinkOwner,
    LinkPeer,
    LinkTransport,
    WorkerLink,
)
from ropewalk.training.near_links import NearLinks
from ropewalk.training.sliced_sum import SumMessage, SumPart
from ropewalk.transport.looking import Looking
from ropewalk.transport.slots import Doorbell


@dataclass(slots=True)
class LinkTraffic:
    """The traffic sent to one worker."""

    messages: int = 0
    size_bytes: int = 0


class _PackedParcel(NamedTuple):
    arrival: Arrival
    weight: float | None


# The kinds of messages: the first item of each message's note.
_PARCEL, _PART, _CREDIT = 0, 1, 2
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


TRANSPORTS: dict[str, Callable[[LinkOwner], LinkTransport]] = {"memory": NearLinks, "calls": FarLinks}
"""The ways in which messages travel, by name; the first that reaches a worker is taken."""


class ProcessLinks:
    """One worker's links to all others of its plan, for one epoch.

    The main thread of the worker uses it; `ring` and `deliver` are for any thread.

    Args:
        epoch: the epoch that the messages belong to.
        me: the worker.
        plan: says which worker runs which stage.
        slots: the largest number of values sent and not received on a link (an edge's values from stage to stage, or
            its gradients, between two workers); None: as many as the schedule sends.
        device: the device of received tensors; None: the CPU's memory, where they arrive.
    """

    def __init__(
        self, epoch: int, me: PlanWorker, plan: Plan, *, slots: int | None = None, device: torch.device | None = None
    ) -> None:
        self.epoch = epoch
        self.me = me
        self.slots = slots
        self.traffic: dict[PlanWorker, LinkTraffic] = {}
        """The traffic sent to each worker since the beginning."""
        self.plan = plan
        self._doorbell = Doorbell()
        self._poll = select.poll()
        self._poll.register(self._doorbell.fileno(), select.POLLIN)
        self._owner = owner = LinkOwner(epoch, me, plan, TensorCodec(device), self._doorbell, [], deque())
        self._transports = {name: transport(owner) for name, transport in TRANSPORTS.items()}
        self._polled = [transport for transport in self._transports.values() if transport.fileno() >= 0]
        """Those that do not ring the doorbell."""
        for transport in self._polled:
            self._poll.register(transport.fileno(), select.POLLIN)
        self._links: dict[PlanWorker, WorkerLink] = {}
        self._behind: set[WorkerLink] = set()
        self._parcels: dict[Tag, LinkMessage | _PackedParcel] = {}
        self._parts: dict[SumKey, dict[SumPart, Arrival]] = {}
        self._unreceived: Counter[tuple[Tag, PlanWorker]] = Counter()
        self._has_news = False
        self._looking = Looking()

    @property
    def lost(self) -> dict[PlanWorker, str]:
        """Workers to which a message could not be sent, and why."""
        return {worker: link.lost for worker, link in self._links.items() if link.lost}

    def endpoint(self) -> Endpoint:
        """The address at which the others reach this worker."""
        addresses = {name: transport.address() for name, transport in self._transports.items()}
        return Endpoint(self.epoch, host_of_this_process(), self._doorbell.place, addresses)

    def connect(
        self, endpoints: Mapping[PlanWorker, Endpoint], clients: Mapping[PlanWorker, Deliver] | None = None
    ) -> None:
        """Connect to the other workers.

        Args:
            endpoints: the endpoints of all workers of the plan, or of all others.
            clients: for each worker of another host, a function that calls its `deliver`.

        Raises:
            PeerLost: a worker of this host is gone.
            ValueError: an endpoint is of another epoch, or there is no client for a worker of another host.
        """
        here = self.endpoint()
        for worker, endpoint in endpoints.items():
            if endpoint.epoch != self.epoch:
                raise ValueError(
                    f"worker {worker} has links of epoch {endpoint.epoch}, and those of worker {self.me} are of epoch "
                    f"{self.epoch}; ask it for its endpoint again"
                )
            if worker == self.me:
                continue
            self.traffic[worker] = LinkTraffic()
            deliver = clients.get(worker) if clients else None
            is_here = endpoint.host == here.host
            for name, transport in self._transports.items():
                address = endpoint.addresses.get(name)
                link = transport.link(LinkPeer(worker, address, endpoint.doorbell, is_here, deliver))
                if link is not None:
                    self._links[worker] = link
                    break
            else:
                raise ValueError(
                    f"worker {worker} (host {endpoint.host!r}) and worker {self.me} (host {here.host!r}) share no "
                    f"memory, and there is no client to call it; there are clients for {sorted(clients or ())}"
                )
        self._take_all(self._transports.values())

    # --- parcels: the protocol of `stages.in_memory_links.Links` ------------------------------------------------------

    def has_room(self, tag: Tag) -> bool:
        """Whether the link holds fewer values than its bound."""
        if self.slots is None:
            return True
        link = self._link(tag)
        if self._unreceived[link] >= self.slots:
            self._hear()
        return self._unreceived[link] < self.slots

    def send(self, tag: Tag, parcel: LinkMessage) -> None:
        """Send a parcel to the worker that runs its micro-batch; never waits."""
        to = self.plan.worker_of(tag.target, tag.micro_batch)
        if self.slots is not None:
            self._unreceived[self._link(tag)] += 1
        if to == self.me:
            self._file(tag, parcel)
            return
        note = _pack((_PARCEL, tag, parcel.weight))
        self._send(to, (parcel.tree, parcel.generator), note)

    def has(self, tag: Tag) -> bool:
        """Whether the parcel has arrived."""
        if tag not in self._parcels:
            self._hear()
        return tag in self._parcels

    def receive(self, tag: Tag) -> LinkMessage:
        """Take the parcel; its tensors may lie in the sender's memory, which is reused when nothing refers to them."""
        found = self._parcels.pop(tag)
        if self.slots is not None:
            self._credit(tag)
        if isinstance(found, LinkMessage):
            return found
        tree, generator = found.arrival.tree()
        # The state of a generator is in the CPU's memory, whichever device draws from it.
        return LinkMessage(tree, None if generator is None else generator.cpu(), found.weight)

    # --- sums between workers -----------------------------------------------------------------------------------------

    def send_part(self, to: PlanWorker, key: SumKey, part: SumPart, message: SumMessage) -> None:
        """Send a message of a sum to another worker; its tensors may change afterwards."""
        self._send(to, message, _pack((_PART, key, part)))

    def parts(self, key: SumKey) -> Mapping[SumPart, SumMessage]:
        """Return the messages of a sum that arrived since the last call; each is returned once."""
        self._hear()
        return {part: arrival.tree() for part, arrival in self._parts.pop(key, {}).items()}

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a message came, there is room, or `ring` was called, since the last wait; False on a timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._has_news:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._poll_for(left_s)
            self._hear()
            if left_s == 0 and not self._has_news:
                return False
        self._has_news = False
        return True

    def ring(self) -> None:
        """End the current wait, or the next one; may be called by any thread."""
        self._doorbell.ring()

    def deliver(self, message: FarMessage) -> None:
        """Accept a message from another host; may be called by any thread. A message of another epoch is dropped."""
        if message.epoch == self.epoch:
            self._owner.delivered.append(message)
            self._doorbell.ring()

    def close(self) -> None:
        """Release everything; may be called twice. Received tensors stay valid."""
        for link in self._links.values():
            link.close()
        for transport in self._transports.values():
            transport.close()
        self._parcels.clear()
        self._parts.clear()
        self._behind.clear()
        self._links.clear()
        self._doorbell.close()

    # --- internals ----------------------------------------------------------------------------------------------------

    def _send(self, to: PlanWorker, tree: Any, note: bytes) -> None:
        link, traffic = self._links[to], self.traffic[to]
        traffic.messages += 1
        traffic.size_bytes += link.send(tree, note)
        if link.is_behind:
            self._behind.add(link)

    def _hear(self) -> None:
        """Sort the messages that arrived, and send credits for which there was no room before."""
        if self._behind:
            self._catch_up()
        messages, was_rung = self._doorbell.heard()
        if was_rung:
            self._has_news = True
            self._owner.announced.extend(messages)
            self._take_all(self._transports.values())
        elif self._polled:
            self._take_all(self._polled)

    def _take_all(self, transports: Iterable[LinkTransport]) -> None:
        for transport in transports:
            for arrival in transport.arrived():
                self._has_news = True
                self._take(arrival)

    def _take(self, arrival: Arrival) -> None:
        kind, *facts = _unpack(arrival.note)
        if kind == _PARCEL:
            tag, weight = facts
            self._file(Tag(*tag), _PackedParcel(arrival, weight))
        elif kind == _PART:
            (what, members, version), (member, is_total) = facts
            key = SumKey(what, tuple(Contributor(*one) for one in members), version)
            self._parts.setdefault(key, {})[SumPart(Contributor(*member), is_total)] = arrival
        else:
            self._unreceived[self._link(Tag(*facts[0]))] -= 1

    def _file(self, tag: Tag, parcel: LinkMessage | _PackedParcel) -> None:
        if tag in self._parcels:
            raise ScheduleInvalid(f"{tag} is sent a second time before it was received")
        self._parcels[tag] = parcel

    def _credit(self, tag: Tag) -> None:
        """Tell the sender that a value was received."""
        sender = self.plan.worker_of(tag.source, tag.micro_batch)
        if sender == self.me:
            self._unreceived[self._link(tag)] -= 1
        else:
            self._send(sender, None, _pack((_CREDIT, tag)))

    def _link(self, tag: Tag) -> tuple[Tag, PlanWorker]:
        return tag._replace(micro_batch=0), self.plan.worker_of(tag.target, tag.micro_batch)

    def _poll_for(self, timeout_s: float | None) -> None:
        behind = tuple(self._behind)
        for link in behind:
            self._poll.register(link.fileno(), select.POLLOUT)
        try:
            self._looking.poll(self._poll.poll, None if timeout_s is None else 1000 * timeout_s)
        finally:
            for link in behind:
                self._poll.unregister(link.fileno())

    def _catch_up(self) -> None:
        for link in tuple(self._behind):
            link.flush()
            if not link.is_behind:
                self._behind.discard(link)


def host_of_this_process() -> str:
    """Identify the processes that can share memory: the host of the run, and the kernel's view of processes."""
    here = bootstrap.current
    host = here.passport.host if here is not None and here.passport is not None else ""
    try:
        return f"{host}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return host


__all__ = ["Endpoint", "FarMessage", "LinkTraffic", "ProcessLinks", "host_of_this_process"]
