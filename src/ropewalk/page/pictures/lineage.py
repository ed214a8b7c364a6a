"""The picture of the panel "lineage": which member of a population copied which, over steps.

Data: see `ropewalk.population.panels.lineage.PBTLineagePanel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style, segments, wheel_zoom

_MOST_LABELS = 20
"""Members that are all named beside their lanes; of more, those are whose names do not overlap."""
_MOST_ARROWS = 600
"""Copies that are drawn; of more, one of a fixed number is."""


def lineage(data: Mapping[str, Any], style: Style) -> Option:
    """A lane for each member, an arrow for each copy, and the way of the best state through the lanes."""
    members: Mapping[str, Mapping[str, Any]] = data["members"]
    copies: Sequence[Mapping[str, Any]] = data["copies"]
    if not any(facts["step"] for facts in members.values()) and not copies:
        return {}
    numbers = sorted(map(int, members))
    left = {int(members[str(number)]["origin"]) for number in numbers}
    exploits = [copy for copy in copies if copy["donor"] >= 0 and copy["reason"] == "exploit"]
    lost = [copy for copy in copies if copy["reason"] != "exploit"]
    step = -(-len(exploits) // _MOST_ARROWS) or 1
    end = max([facts["step"] for facts in members.values()] + [copy["step"] for copy in copies])
    words = f"{len(left)} of {len(numbers)} members at the beginning have descendants now"
    words += f"; one of {step} copies is drawn" if step > 1 else ""
    series = [
        _trained(numbers, members, style),
        _copied(exploits[::-step][::-1], style),
        _best(data["best"]["path"], style),
    ]
    if lost:
        series.append(_lost(lost, style))
    return {
        **style.base(),
        "title": {**style.words(words), "top": 26},
        "legend": style.legend(data=[each["name"] for each in series]),
        "grid": {"left": 64, "right": 24, "top": 52, "bottom": 48},
        "xAxis": style.axis("steps", min=0, max=end, splitLine={"show": False}),
        "yAxis": style.axis(
            "member",
            type="category",
            data=[str(number) for number in numbers],
            inverse=True,
            nameGap=36,
            axisLabel={"color": style.muted, "interval": 0 if len(numbers) <= _MOST_LABELS else "auto"},
        ),
        "dataZoom": [wheel_zoom()],
        "series": series,
    }


def _trained(numbers: Sequence[int], members: Mapping[str, Mapping[str, Any]], style: Style) -> Option:
    color, opacity = (style.muted, 0.45) if style.dark else (style.line, 0.9)
    lines = [
        {"name": f"member {number}", "coords": [[0, str(number)], [members[str(number)]["step"], str(number)]]}
        for number in numbers
        if members[str(number)]["step"]
    ]
    return {**segments("trained", color, 3, opacity), "data": lines, "z": 1}


def _copied(copies: Sequence[Mapping[str, Any]], style: Style) -> Option:
    arrows = [
        {
            "name": f"member {copy['member']} copies {copy['donor']}",
            "coords": [[copy["donor_step"], str(copy["donor"])], [copy["donor_step"], str(copy["member"])]],
        }
        for copy in copies
    ]
    return {
        **segments("copied a better member", style.colors[1], 1, 0.85),
        "symbol": ["circle", "arrow"],
        "symbolSize": [4, 7],
        "data": arrows,
        "z": 3,
    }


def _best(path: Sequence[tuple[int, int, int]], style: Style) -> Option:
    lines = [
        {"name": f"member {member}", "coords": [[first, str(member)], [last, str(member)]]}
        for member, first, last in path
    ]
    return {**segments("way of the best state", style.colors[0], 3, 1.0), "data": lines, "z": 2}


def _lost(copies: Sequence[Mapping[str, Any]], style: Style) -> Option:
    return {
        "name": "state lost",
        "type": "scatter",
        "symbol": "diamond",
        "symbolSize": 9,
        "itemStyle": {"color": style.bad},
        "data": [[copy["step"], str(copy["member"])] for copy in copies],
        "z": 4,
    }


PICTURE = Picture(
    "lineage",
    "Lineage",
    lineage,
    height=380,
    help="An arrow leads from the member that was copied to the one that goes on with its state. Few ancestors early "
    "mean that copying is too greedy.",
    wide=True,
    waiting="no member was copied",
)
