"""Sends the project's files to each agent once: a small bundle on its link, a large one from host to host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ropewalk.processes.agent_record import AgentRecord
from ropewalk.processes.blob_directory import FAN_OUT_MIN_BYTES, BlobDirectory
from ropewalk.processes.messages import PutCode
from ropewalk.transport.blobs import BlobRef, name_of, pack

if TYPE_CHECKING:  # only a run of several hosts imports it
    from ropewalk.processes.code_bundle import CodeBundle


class CodeSender:
    """The project's files, on their way to the hosts of a session. Hosts keep a large bundle as long as the session.

    Args:
        code: the files.
        blobs: the blobs of the session.
    """

    def __init__(self, code: CodeBundle, blobs: BlobDirectory) -> None:
        self._code = code
        self._blobs = blobs
        self._ref: BlobRef | None = None
        self._fd = -1

    def send(self, agent: AgentRecord) -> None:
        """Send them to an agent that does not have them; from the loop's thread.

        Raises:
            LinkClosed: the agent is gone.
            OSError: no memory or descriptors for a large bundle.
        """
        code = self._code
        if agent.link is None or code.id in agent.codes:
            return
        if len(code.data) < FAN_OUT_MIN_BYTES:
            agent.link.send(PutCode(code.id), [code.data])
        else:
            if self._ref is None:
                self._fd = pack([code.data], "ropewalk-code")
                self._ref = BlobRef(name_of([code.data]), (len(code.data),))
            self._blobs.provide_host(agent, self, self._ref, self._fd)
            agent.link.send(PutCode(code.id, self._ref.id))
        agent.codes.add(code.id)  # not before: if it cannot be sent now, the next process asks for it again

    def close(self) -> None:
        """Free the memory; may be called twice."""
        fd, self._fd, self._ref = self._fd, -1, None
        if fd >= 0:
            os.close(fd)
