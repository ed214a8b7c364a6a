"""Decoding of the messages of a round, always in the order of ranks, so that every replica adds up the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ropewalk.errors import MessageCorrupt


def decode_all(messages: Mapping[int, memoryview], decode: Callable[[memoryview], None]) -> None:
    """Call `decode` for every message that is not empty, in the order of ranks.

    Raises:
        MessageCorrupt: as `decode` raised it, with the rank of the sender.
    """
    for rank in sorted(messages):
        if not messages[rank].nbytes:
            continue
        try:
            decode(messages[rank])
        except MessageCorrupt as error:
            raise MessageCorrupt(f"rank {rank} sent what cannot be read: {error}", rank=rank) from error
