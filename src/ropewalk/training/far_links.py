"""Links to workers on other hosts: messages as one-way calls over the program's own connections.

    send ─▶ copied ─▶ call without waiting ─▶ the program's loop sends it during computation ─▶ deliver

The calls need not arrive in order. A message whose call fails is not sent again: the peer counts as lost, and the
controller deploys the workers anew.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ropewalk.calls.client import Client
from ropewalk.exchange.tensor_codec import ALIGN, Encoded
from ropewalk.pipeline.plans import PlanWorker


class FarMessage(NamedTuple):
    """The argument of `deliver` on a worker of another host."""

    epoch: int
    sender: PlanWorker
    blob: Tensor
    """An encoded tree: a tensor of bytes (uint8)."""


Deliver = Callable[[FarMessage], "Future[None]"]
"""Calls `deliver` of a worker without waiting for the answer."""


class FarLink:
    """The link to one worker of another host.

    Args:
        epoch: the epoch of the links.
        me: the sender.
        deliver: calls that worker.
        on_lost: called, by any thread, with the reason why a message was not delivered.
    """

    def __init__(self, epoch: int, me: PlanWorker, deliver: Deliver, on_lost: Callable[[str], None]) -> None:
        self._epoch = epoch
        self._me = me
        self._deliver = deliver
        self._on_lost = on_lost

    def send(self, encoded: Encoded) -> None:
        """Send a tree; its tensors may change afterwards."""
        try:
            future = self._deliver(FarMessage(self._epoch, self._me, encoded.to_tensor()))
        except ConnectionError as error:  # `future` raises it if the peer is known to be gone
            self._on_lost(f"{type(error).__name__}: {error}")
            return
        future.add_done_callback(self._answered)

    def _answered(self, future: Future[None]) -> None:
        try:
            future.result()
        except (CancelledError, Exception) as error:  # raised in any thread, which cannot handle it
            self._on_lost(f"{type(error).__name__}: {error}")


def one_way(member: Client) -> Deliver:
    """Return a function that calls `deliver` of a service."""
    deliver = member.deliver
    # A future, and not `send`, which waits while the service restarts, however long that takes.
    return lambda message: deliver.future(message)


def memory_of(message: FarMessage) -> memoryview:
    """Return its bytes, aligned for tensors: frames begin anywhere, and kernels add in another order if unaligned."""
    blob = message.blob
    if blob.data_ptr() % ALIGN:
        blob = blob.clone()
    assert blob.dtype is torch.uint8
    array: Any = blob.numpy()
    return memoryview(array)


__all__ = ["Deliver", "FarLink", "FarMessage", "memory_of", "one_way"]
