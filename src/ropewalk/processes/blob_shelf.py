"""The blobs that an agent holds for its host: which owners still need each, and which processes wait for one.

put ─▶ blob ─▶ get                    sent by owners, which say when they need it no longer
keep ─▶                               fetched for them from another host (`blob_exchange.py`)

get_made ─ no blob yet ──▶ Make      made by the first process that asks; the others wait, and if it dies,
         ─ being made ───▶ wait      the next one makes it. Each owns it for as long as its link is up
         ─ present ──────▶ blob
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import msgspec

from ropewalk.processes.messages import BlobHere, Make, PutBlob
from ropewalk.transport.blobs import BlobRef, pack, read_bytes
from ropewalk.transport.link import Link, Received

SPARE_S = 30.0
"""A blob that was made here is kept this long without an owner, in seconds: processes that died are replaced, and their
successors need it."""


class _Blob(msgspec.Struct):
    ref: BlobRef
    fd: int
    owners: set[Link]
    made_here: bool


class BlobShelf:
    """One copy of each blob, however many owners name it; removed with its last owner.

    Args:
        call_later: makes a call after a delay in seconds.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], object]], object]) -> None:
        self._call_later = call_later
        self._blobs: dict[str, _Blob] = {}
        self._waiting: dict[str, list[Link]] = {}
        self._calls: dict[str, list[Callable[[bytes], object]]] = {}
        self._making: dict[str, list[Link]] = {}
        """For each blob that is being made: the link of its maker, followed by those that wait for it."""

    def put(self, owner: Link, received: Received) -> None:
        """Keep a blob for an owner; a copy that is here already is used instead."""
        message: PutBlob = received.message
        id = message.ref.id
        if not self.hold(owner, id):
            self.keep(owner, message.ref, received.fds.take() if received.fds else pack(received.parts, id[:16]))

    def hold(self, owner: Link, id: str) -> bool:
        """Keep a blob for one more owner; False if it is not here."""
        held = self._blobs.get(id)
        if held:
            held.owners.add(owner)
        return held is not None

    def keep(self, owner: Link, ref: BlobRef, fd: int) -> None:
        """Keep a blob that is not here yet; the descriptor of its memory file is ours from now on."""
        makers = self._making.pop(ref.id, [])
        self._blobs[ref.id] = _Blob(ref, fd, {owner, *makers}, bool(makers))
        for link in [*makers[1:], *self._waiting.pop(ref.id, ())]:
            self.get(link, ref.id)
        for then in self._calls.pop(ref.id, ()):
            self.when_here(ref.id, then)

    def file_of(self, id: str) -> tuple[int, int] | None:
        """Return the descriptor of a blob's memory file, which stays ours, and its size in bytes; None if not here."""
        held = self._blobs.get(id)
        return (held.fd, held.ref.size_bytes) if held else None

    def get(self, link: Link, id: str) -> None:
        """Send a blob to a process, now or when it has arrived."""
        held = self._blobs.get(id)
        if held is None:
            self._waiting.setdefault(id, []).append(link)
            return
        link.send_if_open(BlobHere(held.ref), fds=[held.fd])

    def when_here(self, id: str, then: Callable[[bytes], object]) -> None:
        """Call `then` with the first part of a blob, now or when it has arrived."""
        held = self._blobs.get(id)
        if held is None:
            self._calls.setdefault(id, []).append(then)
        else:
            then(read_bytes(held.fd, 0, held.ref.lengths[0]))

    def get_made(self, link: Link, id: str) -> None:
        """As `get`, for a blob that this process makes itself if no other does.

        The process becomes one of its owners.
        """
        held = self._blobs.get(id)
        if held:
            held.owners.add(link)
            self.get(link, id)
        elif id in self._making:
            self._making[id].append(link)
        else:
            self._making[id] = [link]
            link.send_if_open(Make(id))

    def drop(self, owner: Link, id: str) -> None:
        """Note that an owner needs a blob no longer; may be called twice."""
        held = self._blobs.get(id)
        if held is None or owner not in held.owners:
            return
        held.owners.remove(owner)
        if held.made_here and not held.owners:
            self._call_later(SPARE_S, lambda: self._free_if_unowned(id))
        else:
            self._free_if_unowned(id)

    def forget(self, link: Link) -> None:
        """Forget a link that is gone: it owns nothing, waits for nothing, and makes nothing."""
        for id in list(self._blobs):
            self.drop(link, id)
        for waiting in self._waiting.values():
            with contextlib.suppress(ValueError):
                waiting.remove(link)
        for id, makers in list(self._making.items()):
            if link in makers:
                was_maker = makers[0] is link
                makers.remove(link)
                if not makers:
                    del self._making[id]
                elif was_maker:
                    makers[0].send_if_open(Make(id))

    def _free_if_unowned(self, id: str) -> None:
        held = self._blobs.get(id)
        if held and not held.owners:
            os.close(held.fd)
            del self._blobs[id]
