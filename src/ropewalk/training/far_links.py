"""Links to workers on other hosts: messages as one-way calls over the program's own connections.

    send ─▶ copied ─▶ call without waiting ─▶ the program's loop sends it during computation ─▶ deliver

The calls need not arrive in order. A message whose call fails is not sent again: the peer counts as lost, and the
controller deploys the workers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import torch

from ropewalk.exchange.tensor_codec import ALIGN
from ropewalk.training.link_transports import Deliver, EncodedArrival, FarMessage, LinkOwner, LinkPeer


class FarLink:
    """The link to one worker of another host.

    Args:
        owner: the sender.
        deliver: calls that worker.
    """

    is_behind = False
    """What is under way is sent by the program's own connections."""

    def __init__(self, owner: LinkOwner, deliver: Deliver) -> None:
        self._epoch = owner.epoch
        self._me = owner.me
        self._codec = owner.codec
        self._deliver = deliver
        self._doorbell = owner.doorbell
        self.lost = ""
        """Why a message was not delivered."""

    def send(self, tree: Any, note: bytes) -> int:
        """Send a tree; its tensors may change afterwards."""
        encoded = self._codec.encode(tree, note)
        try:
            future = self._deliver(FarMessage(self._epoch, self._me, encoded.to_tensor()))
        except ConnectionError as error:  # `future` raises it if the peer is known to be gone
            self._lose(error)
        else:
            future.add_done_callback(self._answered)
        return encoded.size_bytes

    def fileno(self) -> int:
        return -1

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _lose(self, error: BaseException) -> None:
        self.lost = self.lost or f"{type(error).__name__}: {error}"
        self._doorbell.ring()

    def _answered(self, future: Future[None]) -> None:
        try:
            future.result()
        except (CancelledError, Exception) as error:  # raised in any thread, which cannot handle it
            self._lose(error)


class FarLinks:
    """The links to all workers of other hosts; see `LinkTransport`.

    Args:
        owner: the worker.
    """

    def __init__(self, owner: LinkOwner) -> None:
        self._owner = owner

    def address(self) -> None:
        return None  # the plan names the worker that is called

    def link(self, peer: LinkPeer) -> FarLink | None:
        return None if peer.deliver is None else FarLink(self._owner, peer.deliver)

    def fileno(self) -> int:
        return -1

    def arrived(self) -> Sequence[EncodedArrival]:
        delivered = self._owner.delivered
        found: list[EncodedArrival] = []
        while delivered:
            found.append(EncodedArrival(memory_of(delivered.popleft()), self._owner.codec))
        return found

    def close(self) -> None:
        self._owner.delivered.clear()


def memory_of(message: FarMessage) -> memoryview:
    """Return its bytes, aligned for tensors: frames begin anywhere, and kernels add in another order if unaligned."""
    blob = message.blob
    if blob.data_ptr() % ALIGN:
        blob = blob.clone()
    assert blob.dtype is torch.uint8
    array: Any = blob.numpy()
    return memoryview(array)


__all__ = ["Deliver", "FarLink", "FarLinks", "FarMessage", "memory_of"]
