"""The picture of which hyperparameters matter.

Data: `{"shares": {name: share, ...}}`, shares from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.escaping import escaped
from ropewalk.page.style import Option, Style

_MOST_BARS = 16


def importance(data: Mapping[str, Any], style: Style) -> Option:
    """A bar for each hyperparameter, the longest one on top."""
    shares: Mapping[str, float] = data.get("shares", {})
    shown = sorted(shares.items(), key=lambda pair: -pair[1])[:_MOST_BARS]
    if not shown:
        return {}
    axis = style.axis(type="category", data=[escaped(name) for name, _ in shown], inverse=True)
    return {
        **style.base(),
        "grid": {"left": 12, "right": 48, "top": 26, "bottom": 40, "containLabel": True},
        "xAxis": style.axis("share of what distinguishes the best tenth", min=0, nameGap=24),
        "yAxis": {**axis, "axisTick": {"show": False}},
        "series": [{"type": "bar", "name": "importance", "barMaxWidth": 22,
                    "data": [round(share, 4) for _, share in shown],
                    "label": {"show": True, "position": "right", "color": style.muted}}],
    }  # fmt: skip


__all__ = ["importance"]
