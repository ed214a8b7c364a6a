"""State that one member sends to another: tensors and plain values as bytes, read without running any code.

Members are trusted with gradients, not with code, so torch's own reader for weights reads what they send.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch

from ropewalk.errors import ExchangeInvalid

_DAMAGED = (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, LookupError, EOFError, AttributeError, OSError)
"""The errors of torch's reader, depending on the place of the damage."""


def pack(state: object) -> bytes:
    """Serialize state for `unpack`."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def unpack(packed: bytes, device: torch.device | str = "cpu") -> Any:
    """Read the bytes that `pack` made on another member.

    Args:
        packed: the bytes.
        device: device of the tensors; the CPU by default, because another member has devices of its own.

    Returns:
        The state.

    Raises:
        ExchangeInvalid: the bytes are damaged, or hold more than tensors, numbers, texts and containers of them.
    """
    try:
        return torch.load(io.BytesIO(packed), map_location=device, weights_only=True)
    except _DAMAGED as error:
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise ExchangeInvalid(
            f"state of {len(packed):,} bytes from another member is refused, because it is damaged or holds more than "
            f"tensors, numbers, texts and lists, tuples, sets and dicts of them: {why[0]:.200}; let the state_dict() "
            "of what is sent (model, optimizer, everything in carry=) return those alone"
        ) from error


def part_of_state(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries of a state whose names begin with a prefix, without it."""
    return {kind.removeprefix(prefix): part for kind, part in state.items() if kind.startswith(prefix)}
