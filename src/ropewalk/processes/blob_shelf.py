"""The blobs that an agent holds for its host: which owners still need each, and which processes wait for one.

put ─▶ blob ─▶ get                    sent by owners, which say when they need it no longer
    ─▶ no memory ─▶ get               those who wait, or ask later, are told, and the owner, which can send it again
keep ─▶                               fetched for them from another host (`blob_exchange.py`)

get_made ─ no blob yet ──▶ Make      made by the first process that asks; the others wait, and if it dies,
         ─ being made ───▶ wait      the next one makes it. Each owns it for as long as its link is up
         ─ present ──────▶ blob
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable

import msgspec

from ropewalk.processes.fan_out import FetchProblem
from ropewalk.processes.messages import BlobAbsent, BlobHere, BlobNotFetched, Make, PutBlob
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
        self._calls: dict[str, list[Callable[[bytes, str], object]]] = {}
        self._problems: dict[str, str] = {}
        """Why blobs that were sent are not here."""
        self._making: dict[str, list[Link]] = {}
        """For each blob that is being made: the link of its maker, followed by those that wait for it."""

    def put(self, owner: Link, received: Received) -> None:
        """Keep a blob for an owner; a copy that is here already is used instead."""
        message: PutBlob = received.message
        id = message.ref.id
        if self.hold(owner, id):
            return
        try:
            fd = received.fds.take() if received.fds else pack(received.parts, id[:16])
        except OSError as error:  # no memory, or no descriptors
            self._cannot_keep(owner, id, error)
        else:
            self.keep(owner, message.ref, fd)

    def hold(self, owner: Link, id: str) -> bool:
        """Keep a blob for one more owner; False if it is not here."""
        held = self._blobs.get(id)
        if held:
            held.owners.add(owner)
        return held is not None

    def keep(self, owner: Link, ref: BlobRef, fd: int) -> None:
        """Keep a blob that is not here yet; the descriptor of its memory file is ours from now on."""
        self._problems.pop(ref.id, None)
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
            if problem := self._problems.get(id):
                link.send_if_open(BlobAbsent(id, problem))
            else:
                self._waiting.setdefault(id, []).append(link)
            return
        try:
            link.send_if_open(BlobHere(held.ref), fds=[held.fd])
        except OSError as error:  # it has to wait, and no descriptor is left for that
            link.send_if_open(BlobAbsent(id, _words(error)))

    def when_here(self, id: str, then: Callable[[bytes, str], object]) -> None:
        """Call `then` with the first part of a blob, now or when it has arrived, and with "" or why it is not here."""
        held = self._blobs.get(id)
        if held is None:
            self._calls.setdefault(id, []).append(then)
            return
        try:
            data = read_bytes(held.fd, 0, held.ref.lengths[0])
        except (OSError, MemoryError) as error:
            then(b"", _words(error))
        else:
            then(data, "")

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
        self._problems.pop(id, None)
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

    def _cannot_keep(self, owner: Link, id: str, error: OSError) -> None:
        """Tell all who wait for a blob that it does not come; its owner sends it again when it is needed again."""
        problem = self._problems[id] = _words(error)
        for link in self._waiting.pop(id, ()):
            link.send_if_open(BlobAbsent(id, problem))
        for then in self._calls.pop(id, ()):
            then(b"", problem)
        owner.send_if_open(BlobNotFetched(id, 0, FetchProblem.NO_MEMORY))

    def _free_if_unowned(self, id: str) -> None:
        held = self._blobs.get(id)
        if held and not held.owners:
            os.close(held.fd)
            del self._blobs[id]


def _words(error: Exception) -> str:
    return f"{platform.node()} cannot hold it: {str(error) or 'no memory is left'}"
