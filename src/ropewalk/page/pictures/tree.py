"""The picture of the panel "tree": the environments of an open-ended run, their parents and moves of agents.

As the phylogenetic trees of Wang et al.: POET, 2019 (https://arxiv.org/abs/1901.01753), section 4.
Data: see `ropewalk.population.panels.tree.EnvironmentTreePanel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.page.picture import Picture
from ropewalk.page.pictures.bands import shade, shades
from ropewalk.page.style import Option, Style, segments
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
    lives = [
        {
            "name": str(node["label"]),
            "coords": [[node["born"], rows[node["number"]]], [_end(node, now), rows[node["number"]]]],
            "lineStyle": {"color": shade(node["best"], low, high, style)},
        }
        for node in nodes
    ]
    births = [
        {"coords": [[node["born"], rows[node["parent"]]], [node["born"], rows[node["number"]]]]}
        for node in nodes
        if node["parent"] is not None
    ]
    labels = {rows[node["number"]]: str(node["label"])[:_MOST_CHARACTERS] for node in nodes}
    moves = [move for move in data["transfers"] if {move["source"], move["target"]} <= rows.keys()][-_MOST_TRANSFERS:]
    return {
        **style.base(),
        "legend": style.legend(data=["environment", "agent moved as it was", "agent moved after a step", "archived"]),
        "grid": {"left": 24, "right": 92, "top": 44, "bottom": 48, "containLabel": True},
        "xAxis": style.axis("generation", min=0, max=max(now, 1), minInterval=1, splitLine={"show": False}),
        "yAxis": style.axis(
            "",
            type="category",
            data=[labels[row] for row in range(len(rows))]
            if len(rows) <= _MOST_LABELS
            else list(map(str, range(len(rows)))),
            inverse=True,
            axisLabel={"show": len(rows) <= _MOST_LABELS, "color": style.muted, "interval": 0},
            axisTick={"show": False},
        ),
        "visualMap": {
            "min": low,
            "max": high if high > low else low + 1.0,
            "dimension": 2,
            "seriesIndex": 4,
            "calculable": True,
            "right": 4,
            "top": "middle",
            "text": ["best score", ""],
            "textStyle": {"color": style.muted},
            "inRange": {"color": shades(style)},
        },
        "dataZoom": [{"type": "inside"}],
        "series": [
            {**segments("births", style.muted, 1, 0.7), "silent": True, "data": births, "z": 1},
            {**segments("environment", style.colors[0], 4, 1.0), "data": lives, "z": 2},
            _moves("agent moved as it was", style.colors[3], [move for move in moves if not move["fine_tuned"]], rows),
            _moves("agent moved after a step", style.colors[4], [move for move in moves if move["fine_tuned"]], rows),
            {
                "name": "environment",
                "type": "scatter",
                "symbolSize": 8,
                "dimensions": ["generation", "environment", "best score"],
                "data": [
                    {"name": str(node["label"]), "value": [node["born"], rows[node["number"]], node["best"]]}
                    for node in nodes
                ],
                "z": 4,
            },
            {
                "name": "archived",
                "type": "scatter",
                "symbol": "rect",
                "symbolSize": [3, 12],
                "itemStyle": {"color": style.text},
                "data": [[node["retired"], rows[node["number"]]] for node in nodes if node["retired"] is not None],
                "z": 5,
            },
        ],
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
)
