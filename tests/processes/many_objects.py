"""A module whose import makes as many objects as a large library, and counts how often the collector looked at them."""

from __future__ import annotations

import gc
from typing import Any

num_collections = 0


def _count(phase: str, _: dict[str, Any]) -> None:
    global num_collections
    num_collections += phase == "start"


gc.callbacks.append(_count)
kept = [list[int]() for _ in range(100_000)]
gc.callbacks.remove(_count)
