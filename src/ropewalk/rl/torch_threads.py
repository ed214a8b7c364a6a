"""One thread for torch: networks of agents are small, and the order of additions must not depend on the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch


@contextlib.contextmanager
def one_torch_thread() -> Generator[None]:
    """Compute with one thread inside the block, and with as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


__all__ = ["one_torch_thread"]
