"""The picture of events on a line of time: a lane for each kind, a mark for each event.

Data: `{"started": s, "at": s, "events": [{"at", "kind", "text", "process"}]}`, with Unix times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ropewalk.escaping import escaped
from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style, clock

KINDS = ("death", "preemption", "retry", "restart", "replacement", "leave", "join", "scale", "plan", "checkpoint", "")
"""Of events, the worst first, in the order of their lanes."""
OTHER = "other"
_MARKS = {
    "death": ("bad", "diamond"), "preemption": ("warn", "diamond"), "retry": ("warn", "triangle"),
    "restart": ("warn", "circle"), "replacement": ("muted", "circle"), "leave": ("muted", "triangle"),
    "join": ("good", "circle"), "scale": ("good", "rect"), "plan": ("muted", "rect"), "checkpoint": ("good", "pin"),
}  # fmt: skip
_MOST_MARKS = 400
"""Marks of a lane, which then lie side by side: of events that are closer to each other, the newest is shown."""
_LONGEST = 160
"""Characters of an event that its tooltip shows."""


def event_mark(kind: str, style: Style) -> tuple[str, str]:
    """Return the colour and the symbol of a kind of event."""
    color, symbol = _MARKS.get(kind, ("muted", "circle"))
    return str(getattr(style, color)), symbol


def timeline(data: Mapping[str, Any], style: Style) -> Option:
    """A lane for each kind that occurred; deaths on top."""
    events = [event for event in cast("Sequence[Mapping[str, Any]]", data.get("events", ())) if event.get("at")]
    if not events:
        return {}
    found = {_lane(str(event.get("kind", ""))) for event in events}
    lanes = [lane for lane in map(_lane, KINDS) if lane in found]
    begin = min([float(data.get("started") or events[0]["at"]), *(float(event["at"]) for event in events)])
    end = max([float(data.get("at", 0.0)), *(float(event["at"]) for event in events)])
    return {
        **style.base(),
        "tooltip": {**style.base()["tooltip"], "formatter": "{b}"},
        "grid": {"left": 96, "right": 32, "top": 12, "bottom": 28},
        "xAxis": style.axis(
            type="time", min=begin * 1e3, max=max(end, begin + 1) * 1e3, splitLine={"show": False},
            axisLabel={"color": style.muted, "hideOverlap": True, "formatter": clock(end - begin)},
        ),
        "yAxis": style.axis(
            type="category", data=lanes, inverse=True, axisTick={"show": False},
            splitLine={"show": True, "lineStyle": {"color": style.line}},
        ),
        "series": [_series(lane, row, apart(events, lane, (end - begin) / _MOST_MARKS), style)
                   for row, lane in enumerate(lanes)],
    }  # fmt: skip


def _series(lane: str, row: int, events: Sequence[Mapping[str, Any]], style: Style) -> Option:
    color, symbol = event_mark(lane, style)
    return {
        "name": lane,
        "type": "scatter",
        "symbol": symbol,
        "symbolSize": 9 if lane == OTHER else 13,
        "itemStyle": {"color": color, "opacity": 0.85},
        "data": [{"name": _shown(event), "value": [round(float(event["at"]) * 1e3), row]} for event in events],
    }


def apart(events: Sequence[Mapping[str, Any]], lane: str, space_s: float) -> list[Mapping[str, Any]]:
    """Return the events of a lane, in the order of time, of each space of time the newest."""
    mine = [event for event in events if _lane(str(event.get("kind", ""))) == lane]
    return list({float(event["at"]) // (space_s or 1.0): event for event in mine}.values())


def _lane(kind: str) -> str:
    return kind if kind in KINDS and kind else OTHER


def _shown(event: Mapping[str, Any]) -> str:
    text = escaped(str(event.get("text", "")))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def timeline_height(data: Mapping[str, Any]) -> int:
    """Return the height in pixels that the lanes of the data need."""
    lanes = {_lane(str(event.get("kind", ""))) for event in data.get("events", ())}
    return 56 + 28 * max(1, len(lanes))


PICTURE = Picture(
    "events",
    "Events",
    timeline,
    height=200,
    wide=True,
    help="Deaths on top; point at a mark to read it",
    waiting="nothing has happened",
)
