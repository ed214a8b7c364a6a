"""`Picture`: one picture of the data of a panel; the page and reports draw it from the same option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.page.style import Option, Style


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a panel's data.

    Args:
        panel: name of the panel whose data it shows; see `View.panels`.
        title: shown above it.
        option: makes the option of ECharts from the data; pure. An empty option: there is nothing to show yet.
        height: in pixels.
        help: one sentence on how to read it.
        wide: whether it takes the whole width.
        waiting: what has not happened yet while there is nothing to show; after "no data yet: ".
    """

    panel: str
    title: str
    option: Callable[[Mapping[str, Any], Style], Option]
    height: int = 280
    help: str = ""
    wide: bool = False
    waiting: str = ""

    @property
    def nothing(self) -> str:
        """What stands in place of the picture while there is nothing to show."""
        return f"no data yet: {self.waiting}" if self.waiting else "no data yet"


__all__ = ["Picture"]
