"""The nodes of a program as bytes, with what `__main__` must hold for them: pickled once, sent to every host."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ropewalk.program.node import NodeSpec
from ropewalk.transport.frames import Part
from ropewalk.transport.main_namespace import main_facts
from ropewalk.transport.serialization import Payload, define, dumps


class PackedProgram:
    """The pickled nodes of a program; of one that runs in threads, and is sent nowhere, nothing.

    Every host gets the definitions that any node needs: what one node sends, another one
    must be able to rebuild.

    Raises:
        NotPicklable: an argument of a node cannot be sent.
    """

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        self._nodes = {spec.name: dumps(spec.node, what=spec.name) for spec in specs}
        names = frozenset[str]().union(*(payload.names for payload in self._nodes.values()))
        defined = define(names)
        self.main: bytes = msgspec.msgpack.encode(main_facts())
        self.definitions = [(name, len(payload.buffers)) for name, payload in defined.items()]
        self._definitions = [part for payload in defined.values() for part in _parts(payload)]

    def num_buffers(self, name: str) -> int:
        """How many buffers the pickle of a node has."""
        return len(self._nodes[name].buffers) if self._nodes else 0

    def parts(self, names: Sequence[str]) -> list[Part]:
        """What a host with these nodes is sent."""
        packed = [self._nodes[name] for name in names] if self._nodes else []
        return [*self._definitions, *(part for payload in packed for part in _parts(payload))]


def _parts(payload: Payload) -> list[Part]:
    return [payload.pickle, *payload.buffers]
