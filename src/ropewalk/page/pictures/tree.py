"""The picture of the panel "tree": the environments of an open-ended run, their parents and moves of agents.

As the phylogenetic trees of Wang et al.: POET, 2019 (https://arxiv.org/abs/1901.01753), section 4.
Data: see `ropewalk.population.panels.tree.EnvironmentTreePanel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import colour_bar, shade
from ropewalk.page.style import Option, Style, segments, wheel_zoom
from ropewalk.population.tree_rows import tree_rows

_MOST_LABELS, _MOST_CHARACTERS, _MOST_TRANSFERS = 30, 24, 200
Node = Mapping[str, Any]
"""An environment of the panel."""


def tree(data: Mapping[str, Any], style: Style) -> Option:
    """A line for each environment from its birth on, in the colour of its best score, and its parent above it."""
    nodes: Sequence[Node] = data["environments"]
    if not nodes:
        return {}
    rows, now = tree_rows((node["number"], node["parent"]) for node in nodes), int(data["generation"])
    scores = [node["best"] for node in nodes if node["best"] is not None] or [0.0]
    low, high = min(scores), max(scores)
    moves = [move for move in data["transfers"] if {move["source"], move["target"]} <= rows.keys()][-_MOST_TRANSFERS:]
    return {
        **style.base(),
        "legend": style.legend(data=["environment", "agent moved as it was", "agent moved after a step", "archived"]),
        "grid": {"left": 24, "right": 92, "top": 44, "bottom": 48, "containLabel": True},
        "xAxis": style.axis("generation", min=0, max=max(now, 1), minInterval=1, splitLine={"show": False}),
        "yAxis": _labels(nodes, rows, style),
        "visualMap": colour_bar("best score", low, high, style, dimension=2, seriesIndex=4),
        "dataZoom": [wheel_zoom()],
        "series": [
            _births(nodes, rows, style),
            _lives(nodes, rows, now, lambda score: shade(score, low, high, style), style),
            _moves("agent moved as it was", style.colors[3], [move for move in moves if not move["fine_tuned"]], rows),
            _moves("agent moved after a step", style.colors[4], [move for move in moves if move["fine_tuned"]], rows),
            _scores(nodes, rows),
            _retired(nodes, rows, style),
        ],
    }


def _labels(nodes: Sequence[Node], rows: Mapping[int, int], style: Style) -> Option:
    """Return the axis of environments, by name or, if there are many, without."""
    are_few = len(rows) <= _MOST_LABELS
    labels = {rows[node["number"]]: str(node["label"])[:_MOST_CHARACTERS] for node in nodes}
    return style.axis(
        "",
        type="category",
        data=[labels[row] if are_few else str(row) for row in range(len(rows))],
        inverse=True,
        axisLabel={"show": are_few, "color": style.muted, "interval": 0},
        axisTick={"show": False},
    )


def _births(nodes: Sequence[Node], rows: Mapping[int, int], style: Style) -> Option:
    lines = [
        {"coords": [[node["born"], rows[node["parent"]]], [node["born"], rows[node["number"]]]]}
        for node in nodes
        if node["parent"] is not None
    ]
    return {**segments("births", style.muted, 1, 0.7), "silent": True, "data": lines, "z": 1}


def _lives(
    nodes: Sequence[Node],
    rows: Mapping[int, int],
    now: int,
    color_of: Callable[[float | None], str],
    style: Style,
) -> Option:
    lines = [
        {
            "name": str(node["label"]),
            "coords": [[node["born"], rows[node["number"]]], [_end(node, now), rows[node["number"]]]],
            "lineStyle": {"color": color_of(node["best"])},
        }
        for node in nodes
    ]
    return {**segments("environment", style.colors[0], 4, 1.0), "data": lines, "z": 2}


def _scores(nodes: Sequence[Node], rows: Mapping[int, int]) -> Option:
    """Return a point at each birth, whose colour the scale can filter."""
    return {
        "name": "environment",
        "type": "scatter",
        "symbolSize": 8,
        "dimensions": ["generation", "environment", "best score"],
        "data": [
            {"name": str(node["label"]), "value": [node["born"], rows[node["number"]], node["best"]]} for node in nodes
        ],
        "z": 4,
    }


def _retired(nodes: Sequence[Node], rows: Mapping[int, int], style: Style) -> Option:
    return {
        "name": "archived",
        "type": "scatter",
        "symbol": "rect",
        "symbolSize": [3, 12],
        "itemStyle": {"color": style.text},
        "data": [[node["retired"], rows[node["number"]]] for node in nodes if node["retired"] is not None],
        "z": 5,
    }


def _end(node: Node, now: int) -> int:
    return int(node["retired"]) if node["retired"] is not None else max(now, int(node["born"]))


def _moves(name: str, color: str, moves: Sequence[Mapping[str, Any]], rows: Mapping[int, int]) -> Option:
    return {
        **segments(name, color, 1, 0.6),
        "symbol": ["none", "arrow"],
        "symbolSize": 7,
        "data": [
            {
                "name": f"environment {move['source']} to {move['target']}",
                "coords": [[move["generation"], rows[move["source"]]], [move["generation"], rows[move["target"]]]],
            }
            for move in moves
        ],
        "z": 3,
    }


PICTURE = Picture(
    "tree",
    "Environments",
    tree,
    height=460,
    help="Each environment below its parent; arrows are agents that did better elsewhere than where they had learned.",
    wide=True,
    waiting="no environment was made",
)
