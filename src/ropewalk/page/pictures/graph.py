"""The picture of a program's graph: callers to the left of what they call.

Data: `{"nodes": [{"name", "kind", "replicas", "running", "over", "calls_done", "calls_waiting", "mean_call_s"}],
"edges": [{"from", "to", "calls"}]}`. `CallRates` adds `calls_per_s`: to a node, of the calls that it answered; to an
edge, of those that its caller made.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ropewalk.control.facts import shown_number
from ropewalk.escaping import escaped
from ropewalk.page.picture import Picture
from ropewalk.page.style import Option, Style
from ropewalk.quantities import shown_duration

_TOP_PX = 64
_BOTTOM_PX = 96
_ROW_PX = 132
_LONGEST_NAME = 26
_MOST_LABELLED = 40
"""With more nodes, labels would cover each other: they have their name alone."""

Node = Mapping[str, Any]


def graph(data: Mapping[str, Any], style: Style) -> Option:
    """Nodes as circles with their replicas, calls per second, latency and the calls that wait; edges as arrows."""
    nodes = cast("Sequence[Node]", data.get("nodes", ()))
    if not nodes:
        return {}
    names = [str(node.get("name", "")) for node in nodes]
    pairs = [(str(edge.get("from", "")), str(edge.get("to", ""))) for edge in data.get("edges", ())]
    edges = [pair for pair in dict.fromkeys(pairs) if pair[0] in names and pair[1] in names and pair[0] != pair[1]]
    places = layered(names, edges)
    kinds = list(dict.fromkeys(str(node.get("kind", "")) for node in nodes))
    width = max(x for x, _ in places.values())
    series = {
        "type": "graph",
        "name": "calls",
        "coordinateSystem": "cartesian2d",
        "symbol": "circle",
        "edgeSymbol": ["none", "arrow"],
        "edgeSymbolSize": 9,
        "lineStyle": {"color": style.muted, "opacity": 0.8},
        "edgeLabel": {"show": False, "color": style.text, "fontSize": 11, "textBorderWidth": 3,
                      "textBorderColor": style.background},
        "nodes": [_node(node, places[str(node.get("name", ""))], kinds, len(nodes), style) for node in nodes],
        "links": _links(edges, _edge_rates(data), nodes, places),
    }  # fmt: skip
    hidden = {"type": "value", "show": False}
    rows = [row for _, row in places.values()]
    return {
        **style.base(),
        "grid": {"left": 110, "right": 110, "top": _TOP_PX, "bottom": _BOTTOM_PX},
        "tooltip": {**style.base()["tooltip"], "formatter": "{b}"},
        "xAxis": {**hidden, "min": 0 if width else -1, "max": width or 1},
        "yAxis": {**hidden, "min": min(rows) - 0.01, "max": max(rows) + 0.01, "inverse": True},
        "series": [series],
    }


def layered(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Return a place for each node: the column, from callers to what is called, and the row, around 0.

    The column of a node is the longest way to it from a node that nothing calls; edges that would close a cycle do not
    count. A column that an edge passes keeps a row free for it. Nodes of a column are in the order of the mean row of
    their callers (Sugiyama et al. 1981, dummy vertices and barycenters).
    """
    columns = _columns(names, edges)
    callers: dict[str, list[str]] = defaultdict(list)
    for caller, called in edges:
        callers[called].append(caller)
    places: dict[str, tuple[float, float]] = {}
    for column in range(max(columns.values(), default=0) + 1):
        passing = {called: sources for called, sources in callers.items() if columns[called] > column}
        free = [called for called, sources in passing.items() if any(columns[one] < column for one in sources)]
        mine = [(name, False) for name in free] + [(name, True) for name in names if columns[name] == column]

        def center(entry: tuple[str, bool]) -> float:
            rows = [places[caller][1] for caller in callers[entry[0]] if caller in places]
            return sum(rows) / len(rows) if rows else 0.0

        mine.sort(key=center)
        for row, (name, is_node) in enumerate(mine):
            if is_node:
                places[name] = (float(column), row - (len(mine) - 1) / 2)
    return places


def _columns(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    called: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        called[source].append(target)
    order, back = _depth_first(names, called)
    columns = dict.fromkeys(names, 0)
    for name in reversed(order):  # callers before what they call
        for target in called[name]:
            if (name, target) not in back:
                columns[target] = max(columns[target], columns[name] + 1)
    return columns


def _depth_first(names: Sequence[str], called: Mapping[str, Sequence[str]]) -> tuple[list[str], set[tuple[str, str]]]:
    """Return the nodes in the order in which a depth-first search leaves them, and the edges that close cycles."""
    left: list[str] = []
    back: set[tuple[str, str]] = set()
    state: dict[str, str] = {}
    with_callers = {target for targets in called.values() for target in targets}
    for start in sorted(names, key=lambda name: name in with_callers):
        if start in state:
            continue
        state[start] = "open"
        stack = [(start, iter(called[start]))]
        while stack:
            name, targets = stack[-1]
            for target in targets:
                if state.get(target) == "open":
                    back.add((name, target))
                elif target not in state:
                    state[target] = "open"
                    stack.append((target, iter(called[target])))
                    break
            else:
                state[name] = "left"
                left.append(name)
                stack.pop()
    return left, back


def _node(node: Node, place: tuple[float, float], kinds: Sequence[str], num: int, style: Style) -> dict[str, Any]:
    name, kind = str(node.get("name", "")), str(node.get("kind", ""))
    replicas, running, over = (int(node.get(key, 0)) for key in ("replicas", "running", "over"))
    waiting, is_short = int(node.get("calls_waiting", 0)), running + over < replicas
    color = style.colors[kinds.index(kind) % len(style.colors)]
    numbers = [f"{shown_number(node['calls_per_s'])} calls/s"] if node.get("calls_per_s") else []
    if node.get("calls_done"):
        numbers.append(shown_duration(float(node.get("mean_call_s", 0.0))))
    few = num <= _MOST_LABELLED
    lines = [f"{{name|{_plain(name)}}}{{kind|{f' × {replicas}' if replicas > 1 else ''}}}"]
    if few and is_short:
        lines.append(f"{{waiting|{running} of {replicas} run}}")
    elif few and over:
        lines.append(f"{{kind|{over} of {replicas} ended}}")
    if few:
        lines += [f"{{kind|{_plain(kind)}}}", f"{{numbers|{' · '.join(numbers)}}}" if numbers else ""]
        lines += [f"{{waiting|{waiting:,} waiting}}"] if waiting else []
    size = 44 if few else 18
    words = [name, kind, f"{running} of {replicas} run", f"{int(node.get('calls_done', 0)):,} calls done", *numbers]
    return {
        "name": escaped(", ".join([*words, f"{waiting:,} waiting"])),
        "value": list(place),
        "symbolSize": size,
        "itemStyle": {"color": style.background, "borderColor": color, "borderWidth": 3,
                      "borderType": "dashed" if is_short else "solid"},
        "label": {
            "show": True, "backgroundColor": style.background, "padding": [0, 3], "position": "bottom",
            "distance": 6, "align": "center", "lineHeight": 15,
            "formatter": "\n".join(line for line in lines if line),
            "rich": {
                "name": {"color": style.text, "fontWeight": "bold", "fontSize": 13},
                "kind": {"color": style.muted, "fontSize": 11},
                "numbers": {"color": style.text, "fontSize": 11},
                "waiting": {"color": style.warn, "fontSize": 11, "fontWeight": "bold"},
            },
        },
    }  # fmt: skip


def _links(
    edges: Sequence[tuple[str, str]],
    rates: Mapping[tuple[str, str], float],
    nodes: Sequence[Node],
    places: Mapping[str, tuple[float, float]],
) -> list[dict[str, Any]]:
    numbers = {str(node.get("name", "")): index for index, node in enumerate(nodes)}
    width = max(x for x, _ in places.values())
    links: list[dict[str, Any]] = []
    for source, target in edges:
        rate = rates.get((source, target), 0.0)
        span = places[target][0] - places[source][0]
        bent = span <= 0 or _passes_a_node(places[source], places[target], places.values())
        curveness = min(0.3, 0.08 * (width or 1) / (abs(span) or 1)) if bent else 0.0  # all rise by the same pixels
        links.append(
            {
                "source": numbers[source],
                "target": numbers[target],
                "lineStyle": {"width": 1.5 + min(4.0, math.log10(1 + rate)), "curveness": curveness},
                "label": {"show": rate > 0, "formatter": f"{shown_number(rate)}/s"},
            }
        )
    return links


def _edge_rates(data: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (str(edge.get("from", "")), str(edge.get("to", ""))): float(edge.get("calls_per_s", 0.0))
        for edge in data.get("edges", ())
    }


def _passes_a_node(
    source: tuple[float, float], target: tuple[float, float], places: Iterable[tuple[float, float]]
) -> bool:
    """Return whether a straight line between two nodes goes through another one."""
    (x, y), (to_x, to_y) = source, target
    return any(
        x < column < to_x and abs(y + (to_y - y) * (column - x) / (to_x - x) - row) < 0.2 for column, row in places
    )


def _plain(text: str) -> str:
    """Return a short text that is not taken for the markup of a label."""
    shown = escaped(text)
    shown = shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"
    return shown.translate({ord("{"): "(", ord("}"): ")", ord("|"): "/"})


def graph_height(data: Mapping[str, Any]) -> int:
    """Return the height in pixels that the nodes of the data need."""
    names = [str(node.get("name", "")) for node in data.get("nodes", ())]
    pairs = {(str(edge.get("from", "")), str(edge.get("to", ""))) for edge in data.get("edges", ())}
    places = layered(names, sorted(pair for pair in pairs if pair[0] in names and pair[1] in names))
    rows = [row for _, row in places.values()] or [0.0]
    return _TOP_PX + _BOTTOM_PX + round((_ROW_PX if len(names) <= _MOST_LABELLED else 40) * (max(rows) - min(rows)))


PICTURE = Picture(
    "graph", "Graph", graph, height=320, wide=True,
    help="Callers to the left of what they call; a dashed circle lacks replicas",
)  # fmt: skip
