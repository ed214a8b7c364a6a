"""A value with the definitions of `__main__` that it needs, as the parts of a message or of a blob.

layout │ pickle, buffers ... of the value │ pickle, buffers ... of each definition
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ropewalk.transport.frames import Part
from ropewalk.transport.main_namespace import Definition
from ropewalk.transport.serialization import Payload, loads


class PartsLayout(msgspec.Struct, array_like=True, frozen=True):
    """How the parts belong together."""

    value_buffers: int
    """Number of buffers of the value; -1 if there are only definitions."""
    definitions: list[tuple[str, int]]
    """Name in `__main__` and number of buffers of each definition."""


_ENCODE = msgspec.msgpack.Encoder().encode
_LAYOUT = msgspec.msgpack.Decoder(PartsLayout)


def parts_of(payload: Payload | None, definitions: Mapping[str, Payload]) -> list[Part]:
    """Return the parts of a value with the definitions it needs, or of definitions alone."""
    layout = PartsLayout(
        len(payload.buffers) if payload else -1,
        [(name, len(definition.buffers)) for name, definition in definitions.items()],
    )
    parts: list[Part] = [_ENCODE(layout)]
    for each in [payload, *definitions.values()] if payload else definitions.values():
        parts += [each.pickle, *each.buffers]
    return parts


def value_of(
    parts: Sequence[Part], install: Callable[[Mapping[str, Definition]], object], *, writable: bool = False
) -> Any:
    """Return the value that the parts hold, once the definitions are installed; None if they hold only definitions.

    Args:
        parts: as `parts_of` returned them.
        install: adds the definitions to `__main__`; see `MainNamespace.install`.
        writable: copy buffers that cannot be written to; otherwise arrays over them are read-only.

    Raises:
        Exception: whatever unpickling raises.
    """
    layout = _LAYOUT.decode(parts[0])
    at = 1

    def take(num_buffers: int) -> Definition:
        nonlocal at
        pickled, buffers = parts[at], parts[at + 1 : at + 1 + num_buffers]
        at += 1 + num_buffers
        return pickled, [_writable(buffer) for buffer in buffers] if writable else buffers

    value = take(layout.value_buffers) if layout.value_buffers >= 0 else None
    definitions = {name: take(num_buffers) for name, num_buffers in layout.definitions}
    if definitions:
        install(definitions)
    return loads(value[0], value[1]) if value else None


def _writable(part: Part) -> Part:
    return part if isinstance(part, memoryview) and not part.readonly else memoryview(bytearray(part))


__all__ = ["parts_of", "value_of"]
