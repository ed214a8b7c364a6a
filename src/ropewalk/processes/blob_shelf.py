"""The blobs an agent holds for its host: who still needs each, and who waits for one."""

from __future__ import annotations

import contextlib
import os

from ropewalk.errors import LinkClosed
from ropewalk.processes.messages import BlobHere, PutBlob
from ropewalk.transport.blobs import BlobRef, pack
from ropewalk.transport.link import Link, Received


class BlobShelf:
    """One copy of each blob, however many owners name it; gone with its last owner."""

    def __init__(self) -> None:
        self._blobs: dict[str, tuple[BlobRef, int, set[Link]]] = {}
        self._waiting: dict[str, list[Link]] = {}

    def put(self, owner: Link, received: Received) -> None:
        """Keep a blob for an owner; a copy that is here already is used instead."""
        message: PutBlob = received.message
        held = self._blobs.get(message.ref.id)
        if held:
            held[2].add(owner)
            for fd in received.fds:
                os.close(fd)
            return
        fd = received.fds[0] if received.fds else pack(received.parts, message.ref.id[:16])
        self._blobs[message.ref.id] = (message.ref, fd, {owner})
        for link in self._waiting.pop(message.ref.id, ()):
            self.get(link, message.ref.id)

    def get(self, link: Link, id: str) -> None:
        """Hand a blob to a process, now or when it has come."""
        held = self._blobs.get(id)
        if held is None:
            self._waiting.setdefault(id, []).append(link)
            return
        with contextlib.suppress(LinkClosed):
            link.send(BlobHere(held[0]), fds=[held[1]])

    def drop(self, owner: Link, id: str) -> None:
        """An owner needs a blob no longer; may be called twice."""
        held = self._blobs.get(id)
        if held is None:
            return
        held[2].discard(owner)
        if not held[2]:
            os.close(held[1])
            del self._blobs[id]

    def forget(self, link: Link) -> None:
        """A link is gone: it owns nothing and waits for nothing."""
        for id in list(self._blobs):
            self.drop(link, id)
        for waiting in self._waiting.values():
            with contextlib.suppress(ValueError):
                waiting.remove(link)
