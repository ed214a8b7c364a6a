"""`ReplayTable`: placeholder of the contract; see GUIDE."""

from __future__ import annotations


class ReplayTable:
    """To be written."""


__all__ = ["ReplayTable"]
