"""The picture of a trainer's snapshots: when each was taken, how many steps it holds, and what became of it.

Data: see `ropewalk.training.panels.snapshots`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style, clock
from ropewalk.quantities import counted, shown_duration, shown_size


def snapshots(data: Mapping[str, Any], style: Style) -> Option:
    """A point for each snapshot, in the colour of its state."""
    found: Sequence[Mapping[str, Any]] = data.get("snapshots", ())
    if not found:
        return {}
    times = [one["whole"] or one["asked"] for one in found]
    labels = {"color": style.muted, "hideOverlap": True, "formatter": clock(max(times) - min(times))}
    colors = {"whole": style.good, "superseded": style.muted, "under way": style.warn, "dropped": style.bad}
    return {
        **style.base(),
        "title": _title(data, style),
        "legend": style.legend(top=26, left=8),
        "grid": {"left": 72, "right": 24, "top": 60, "bottom": 44},
        "xAxis": style.axis("time", type="time", nameGap=26, axisLabel=labels),
        "yAxis": style.axis("steps held", scale=True, minInterval=1, nameGap=46),
        "series": [
            {
                "name": state,
                "type": "scatter",
                "symbolSize": 12 if state == "whole" else 8,
                "itemStyle": {"color": color},
                "data": [_point(one) for one in found if one["state"] == state],
            }
            for state, color in colors.items()
            if any(one["state"] == state for one in found)
        ],
    }


def _point(one: Mapping[str, Any]) -> Option:
    return {"value": [round(1000 * (one["whole"] or one["asked"])), int(one["step"])]}


def _title(data: Mapping[str, Any], style: Style) -> Option:
    last = next((one for one in reversed(data["snapshots"]) if one["whole"]), data["snapshots"][-1])
    cost = "" if data["cost"] is None else f", {100 * data['cost']:.2g} % of the time"
    copies = f"; a further copy: {data['copies']}" if data["copies"] else ""
    return {
        "text": f"every {counted(int(data['every']), 'step')}{cost}; {shown_size(last['size_bytes'])}, "
        f"taken in {shown_duration(last['took_s'])}{copies}",
        "left": 8,
        "top": 2,
        "textStyle": {"fontSize": 12, "color": style.muted},
    }


PICTURE = Picture(
    "snapshots",
    "Snapshots",
    snapshots,
    height=260,
    help="After a death, training goes on from the newest whole one.",
    waiting="no snapshot was taken",
)
