"""The nodes of a program as bytes, with the definitions that they need in `__main__`: pickled once, sent to every host.

definitions of __main__ ─▶ FrozenBytes ─┬─ small: in the message to each process
each node with arguments ─▶ FrozenBytes ┴─ large: a constant, which each host gets once and its processes map
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from ropewalk.pool.constants import Constant
from ropewalk.program.node import NodeSpec
from ropewalk.transport.blobs import SHARED_MIN_BYTES, BlobRef, name_of, total_bytes
from ropewalk.transport.frames import Part
from ropewalk.transport.main_namespace import main_facts
from ropewalk.transport.serialization import Payload, define, dumps


class FrozenBytes:
    """A copy of bytes, independent of later changes to their source.

    Raises:
        OSError: no memory or descriptors for large ones.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        is_large = total_bytes(parts) >= SHARED_MIN_BYTES
        self.constant = Constant(name_of(parts), list(parts)) if is_large else None
        self.parts: list[Part] = [] if is_large else [bytes(part) for part in parts]
        """The parts that are sent with the message."""

    @property
    def blob(self) -> BlobRef | None:
        """Reference to the parts at the host, if they are not in the message."""
        return self.constant.blob if self.constant else None


class PackedProgram:
    """The pickled nodes of a program; empty for a program of threads, which is not sent.

    Every host gets the definitions that any node needs: it must be able to unpickle objects that other nodes send.

    Raises:
        NotPicklable: an argument of a node cannot be sent.
        OSError: no memory or descriptors for large arguments.
    """

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        nodes = {spec.name: dumps(spec.node, what=spec.name) for spec in specs}
        names = frozenset[str]().union(*(payload.names for payload in nodes.values()))
        defined = define(names)
        self.main: bytes = msgspec.msgpack.encode(main_facts())
        self.definitions: list[tuple[str, int]] = [(name, len(payload.buffers)) for name, payload in defined.items()]
        self._num_buffers = {name: len(payload.buffers) for name, payload in nodes.items()}
        with contextlib.ExitStack() as undo:
            self._constants = undo
            self._definitions = self._bundle([part for payload in defined.values() for part in _parts(payload)])
            self._nodes = {name: self._bundle(_parts(payload)) for name, payload in nodes.items()}
            self._constants = undo.pop_all()

    def num_buffers(self, name: str) -> int:
        """Number of buffers of a node's pickle."""
        return self._num_buffers.get(name, 0)

    def bundles(self, names: Sequence[str]) -> list[FrozenBytes]:
        """The data for a host with these nodes: the definitions, then the nodes."""
        return [self._definitions, *(self._nodes[name] for name in names if name in self._nodes)]

    def close(self) -> None:
        """Close the memory files; may be called twice."""
        self._constants.close()

    def _bundle(self, parts: Sequence[Part]) -> FrozenBytes:
        bundle = FrozenBytes(parts)
        if bundle.constant:
            self._constants.callback(bundle.constant.close)
        return bundle


def _parts(payload: Payload) -> list[Part]:
    return [payload.pickle, *payload.buffers]
