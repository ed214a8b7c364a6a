"""One checkpoint of one object: its state is taken while no code of it runs, and written in the background.

    take:    state_dict() ─▶ pickle ─▶ buffers in the object's own memory ─▶ fork, or copy
    finish:                    child, or this thread: digest, file ─▶ stored

Calls wait for `take` only, which takes milliseconds however large the state is: a forked child has all memory as it was
at that moment. Small states are copied; so are all states where no child can be forked, because other nodes share the
process or because the state holds objects that a child cannot read. A `Frozen` state needs neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ropewalk.calls.frozen import Frozen
from ropewalk.program.checkpoints import Header, write
from ropewalk.program.forked_work import ForkedWork
from ropewalk.program.large_pages import join_pages
from ropewalk.program.snapshot_costs import How, SnapshotCosts
from ropewalk.program.state_stores import NewState
from ropewalk.transport.serialization import Payload, dumps

_SILENT_S = 120.0
"""Timeout in seconds for a child, or a disk, to make progress."""
_SIGN_BYTES = 16 << 20
"""Bytes that a child writes between two signs of life."""


class CheckpointWrite:
    """One checkpoint.

    Args:
        obj: gives its state.
        header: of the checkpoint.
        what: the name of the state in errors.
        new: the file in the store.
        costs: choose between copy and child; None if the object has ended, and neither is needed.
        memory: for copies; reused, because memory that was never used before costs many times as much.
        unless: the digest of the stored checkpoint, which stays if this one has the same digest.
    """

    def __init__(
        self,
        obj: Any,
        header: Header,
        what: str,
        new: NewState,
        costs: SnapshotCosts | None,
        memory: list[bytearray],
        unless: bytes,
    ) -> None:
        self._obj = obj
        self._header = header
        self._what = what
        self._new = new
        self._costs = costs
        self._memory = memory
        self._unless = unless
        self.how: How | None = None
        """The way in which the state is preserved while the object goes on."""
        self._child: ForkedWork | None = None
        self._frozen: Frozen[Any] | None = None
        self._payload: Payload | None = None

    def take(self) -> None:
        """Take the state as it is; nothing may change it meanwhile.

        Raises:
            Exception: the error of `state_dict`, or of pickling its value.
            OSError: no child can be forked.
        """
        state, costs = self._obj.state_dict(), self._costs
        if isinstance(state, Frozen):
            self._frozen = state
        elif costs and costs.pickles_in_child:
            self._fork(How.PICKLE_IN_CHILD, costs, lambda: dumps(state, what=self._what))
        else:
            begun = time.monotonic()
            payload = self._payload = dumps(state, what=self._what)
            if costs:
                costs.pickled(time.monotonic() - begun)
                if costs.copies(payload.size_bytes):
                    self._copy(payload, costs)
                else:
                    self._fork(How.WRITE_IN_CHILD, costs, lambda: payload)

    def finish(self) -> bytes:
        """Wait until the state is stored; return its digest.

        Raises:
            ForkedWorkFailed: the child failed, or was killed.
            OSError: it could not be stored; the previous checkpoint still is.
            LinkClosed: the launcher, which stores it, is gone.
        """
        if self._child:
            self._new.follow(_SILENT_S)
            digest = self._child.wait(_SILENT_S)
            if digest.startswith(_OF_DISK):
                raise OSError(digest[len(_OF_DISK) :].decode(errors="replace"))
        else:
            payload = dumps(self._frozen.value, what=self._what) if self._frozen else self._payload
            assert payload
            digest = self._write(payload, lambda: None)
        if digest != self._unless:
            self._new.keep()
        return digest

    def end(self) -> None:
        """Release all resources; after `finish`, or instead of it. May be called twice."""
        if self._child:
            self._child.kill()
            if (
                self._payload and self._costs and self._costs.forks_slowly
            ):  # memory that was written to is in small pages
                join_pages(self._payload.buffers)
        self._new.discard()
        self._payload = self._frozen = None

    def _fork(self, how: How, costs: SnapshotCosts, get: Callable[[], Payload]) -> None:
        def work(sign: Callable[[], None]) -> bytes:
            payload = get()
            try:
                return self._write(payload, sign)
            except OSError as error:  # an error of the disk or link, not of the child
                return _OF_DISK + str(error).encode(errors="replace")

        self.how = how
        self._new.expect_child()
        begun = time.monotonic()
        self._child = ForkedWork(work)
        costs.forked(time.monotonic() - begun)

    def _copy(self, payload: Payload, costs: SnapshotCosts) -> None:
        self.how = How.COPY
        sizes = [buffer.nbytes for buffer in payload.buffers]
        was_used = sizes == [len(each) for each in self._memory]
        if not was_used:
            self._memory[:] = [bytearray(size) for size in sizes]
        begun = time.monotonic()
        for copy, buffer in zip(self._memory, payload.buffers, strict=True):
            copy[:] = buffer
        if was_used:
            costs.copied(sum(sizes), time.monotonic() - begun)
        self._payload = Payload(payload.pickle, tuple(map(memoryview, self._memory)), payload.names)

    def _write(self, payload: Payload, sign: Callable[[], None]) -> bytes:
        return write(_Signing(self._new.file, sign), self._header, payload, self._unless)


_OF_DISK = b"the disk or the link refuses what is written there: "
"""Prefix of the message of a child that could not write; no digest begins with it, because digests are shorter."""


class _Signing:
    """A file that reports signs of life when it is written to."""

    def __init__(self, file: Any, sign: Callable[[], None]) -> None:
        self._file = file
        self._sign = sign

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        for at in range(0, view.nbytes, _SIGN_BYTES):
            self._file.write(view[at : at + _SIGN_BYTES])
            self._sign()

    def flush(self) -> None:
        self._file.flush()


__all__ = ["CheckpointWrite"]
