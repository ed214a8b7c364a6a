"""Going through the messages of a round: always in the order of ranks, so that every replica adds up the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ropewalk.errors import MessageCorrupt


def decode_all(messages: Mapping[int, memoryview], decode: Callable[[memoryview], None]) -> None:
    """Hear every message that says something.

    Raises:
        MessageCorrupt: as `decode` raised it, with the rank whose message it is.
    """
    for rank in sorted(messages):
        if not messages[rank].nbytes:
            continue
        try:
            decode(messages[rank])
        except MessageCorrupt as error:
            raise MessageCorrupt(f"rank {rank} sent what cannot be read: {error}", rank=rank) from error
