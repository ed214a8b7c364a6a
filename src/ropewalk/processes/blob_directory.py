"""Which hosts have which blobs, and for which processes: each blob is sent at most once to each host."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable

from ropewalk.errors import LinkClosed
from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.messages import DropBlob, PutBlob
from ropewalk.processes.owner import Owner
from ropewalk.processes.process_manager import ProcessManager
from ropewalk.transport.blobs import BlobRef, open_parts


class BlobDirectory:
    """The blobs that a session has sent to its hosts. For any thread.

    Args:
        processes: the processes that need them.
        agents: returns all agents of the session.
    """

    def __init__(self, processes: ProcessManager, agents: Callable[[], Iterable[AgentRecord]]) -> None:
        self._processes = processes
        self._agents = agents
        # The collector may free a pool, which drops its blobs, while this very thread holds the lock.
        self._lock = threading.RLock()

    def provide(self, id: str, ref: BlobRef, fd: int) -> None:
        """Make sure that the host of a process has a blob.

        Args:
            id: id of the process; one without a host needs nothing yet.
            ref: name of the blob and the layout of its parts.
            fd: descriptor of the memory file with its bytes; stays the caller's.
        """
        found = self._processes.hosted(id)
        if found is None:
            return
        agent, owner = found
        with self._lock:  # until it is sent, or a concurrent drop by another owner could overtake it
            if agent.link is None:
                return
            holders = agent.blobs.setdefault(ref.id, [])
            if not holders:
                with contextlib.suppress(LinkClosed):
                    if agent.link.stream.carries_fds:
                        agent.link.send(PutBlob(ref), fds=[fd])
                    else:
                        agent.link.send(PutBlob(ref), open_parts(os.dup(fd), ref.lengths, writable=False))
            if owner not in holders:
                holders.append(owner)

    def drop(self, blob_id: str, owner: Owner) -> None:
        """Note that an owner's processes need a blob no more; hosts forget it with its last owner."""
        with self._lock:
            for agent in self._agents():
                holders = agent.blobs.get(blob_id)
                if not holders or owner not in holders:
                    continue
                holders.remove(owner)
                if not holders:
                    del agent.blobs[blob_id]
                    if agent.link:
                        with contextlib.suppress(LinkClosed):
                            agent.link.send(DropBlob(blob_id))
