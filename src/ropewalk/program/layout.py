"""The layout of a graph's boxes: by Graphviz where it is installed, otherwise in rows by longest path.

Both keep boxes apart and draw clusters around their own boxes. Graphviz also routes edges around boxes; in the plain
rows an edge that crosses a row may pass behind a box.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Pair = tuple[str, str]
Point = tuple[float, float]

GAP_X, GAP_Y = 36.0, 60.0
PADDING, HEADING = 18.0, 26.0
"""Space around the contents of a cluster, and above them for its label."""
MOST_IN_A_ROW = 4
"""Maximum number of items without edges in one row."""
_GRAPHVIZ_TIMEOUT_S = 30


@dataclass(slots=True)
class LayoutItem:
    """A box, or a cluster of boxes; `place` sets its position."""

    name: str
    width: float = 0.0
    height: float = 0.0
    inside: list[LayoutItem] = field(default_factory=list["LayoutItem"])
    x: float = 0.0
    """Of the left edge."""
    y: float = 0.0
    """Of the upper edge."""

    @property
    def center(self) -> float:
        return self.x + self.width / 2


def place(root: LayoutItem, edges: Iterable[Pair]) -> dict[Pair, list[Point]]:
    """Set the position and size of the root and of everything inside it.

    Args:
        root: a cluster. Boxes already have their width and height, clusters their minimum width.
        edges: pairs of different box names, caller and callee.

    Returns:
        For each edge the points of its curve from caller to callee: the start, and for each piece (a cubic Bézier
        curve) its two control points and its end.
    """
    edges = list(dict.fromkeys(edges))
    routes = placed_by_graphviz(root, edges)
    return placed_in_rows(root, edges) if routes is None else routes


# --- Graphviz ---------------------------------------------------------------------------------------------------------


def placed_by_graphviz(root: LayoutItem, edges: Sequence[Pair]) -> dict[Pair, list[Point]] | None:
    """As `place`; returns None, with nothing placed, if Graphviz is not installed."""
    program = shutil.which("dot")
    if program is None:
        return None
    leaves = list(_leaves(root))
    number_of = {leaf.name: number for number, leaf in enumerate(leaves)}
    clusters = [item for item in _items(root) if item.inside and item is not root]
    lines = [
        "digraph {",
        f'nodesep={GAP_X / 72:.3f}; ranksep={GAP_Y / 72:.3f}; pad=0; node [shape=box, fixedsize=true, label=""];',
        f'edge [dir=none]; graph [fontsize=14, fontname="Helvetica", labeljust=l, margin={PADDING:g}];',
        *_written(root, {id(item): number for number, item in enumerate(clusters)}, number_of),
        *(f"n{number_of[a]} -> n{number_of[b]} [id=e{number}];" for number, (a, b) in enumerate(edges)),
        "}",
    ]
    try:
        done = subprocess.run(
            [program, "-Tjson"], input="\n".join(lines), capture_output=True, text=True, timeout=_GRAPHVIZ_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    drawn = json.loads(done.stdout)
    left, _, right, top = _numbers(drawn["bb"])
    root.x, root.y = left - PADDING, -PADDING - HEADING
    root.width, root.height = max(root.width, right - left + 2 * PADDING), top + 2 * PADDING + HEADING
    found: dict[str, dict[str, Any]] = {thing["name"]: thing for thing in drawn.get("objects", ())}
    for number, leaf in enumerate(leaves):
        x, y = _numbers(found[f"n{number}"]["pos"])
        leaf.x, leaf.y = x - leaf.width / 2, top - y - leaf.height / 2
    for number, item in enumerate(clusters):
        low_x, low_y, high_x, high_y = _numbers(found[f"cluster{number}"]["bb"])
        item.x, item.y, item.width, item.height = low_x, top - high_y, high_x - low_x, high_y - low_y
    routes: dict[Pair, list[Point]] = {}
    for edge in drawn.get("edges", ()):
        numbers = _numbers(edge["pos"])
        points = [(x, top - y) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]
        routes[edges[int(edge["id"][1:])]] = points
    dx, dy = -root.x, -root.y
    _move(root, dx, dy)
    return {edge: [(x + dx, y + dy) for x, y in routes[edge]] for edge in edges}


def _written(item: LayoutItem, cluster_of: dict[int, int], number_of: dict[str, int]) -> Iterator[str]:
    for part in item.inside:
        if part.inside:
            # Graphviz reserves room for this label, which is as wide as ours will be.
            yield f'subgraph cluster{cluster_of[id(part)]} {{ label="{"m" * round(part.width / 12)}";'
            yield from _written(part, cluster_of, number_of)
            yield "}"
        else:
            yield f"n{number_of[part.name]} [width={part.width / 72:.4f}, height={part.height / 72:.4f}];"


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.split(r"[, ]", text)]


# --- rows -------------------------------------------------------------------------------------------------------------


def placed_in_rows(root: LayoutItem, edges: Sequence[Pair]) -> dict[Pair, list[Point]]:
    """As `place`, in rows: each item is below its callers, and a cluster counts as one item of its parent cluster."""
    _place_inside(root, edges)
    _move(root, -root.x, -root.y)
    boxes = {item.name: item for item in _leaves(root)}
    return {(caller, callee): _curve(boxes[caller], boxes[callee]) for caller, callee in edges}


def _place_inside(cluster: LayoutItem, edges: Sequence[Pair]) -> None:
    for item in cluster.inside:
        if item.inside:
            _place_inside(item, edges)
    holder = {leaf.name: item.name for item in cluster.inside for leaf in _leaves(item)}
    between = [(holder[a], holder[b]) for a, b in edges if a in holder and b in holder and holder[a] != holder[b]]
    names = [item.name for item in cluster.inside]
    downward = without_circles(names, dict.fromkeys(between))
    row_of = rows_by_longest_path(names, downward)
    items = {item.name: item for item in cluster.inside}
    y = 0.0
    for number in range(max(row_of.values()) + 1):
        row = [item for item in cluster.inside if row_of[item.name] == number]
        if number:  # below its callers
            callers = {item.name: [items[a].center for a, b in downward if b == item.name] for item in row}
            row.sort(key=lambda item: sum(callers[item.name]) / max(1, len(callers[item.name])))
        x = -(sum(item.width for item in row) + GAP_X * (len(row) - 1)) / 2
        height = max((item.height for item in row), default=0.0)
        for item in row:
            _move(item, x - item.x, y + (height - item.height) / 2 - item.y)
            x += item.width + GAP_X
        y += height + GAP_Y
    _wrap(cluster)


def _curve(caller: LayoutItem, callee: LayoutItem) -> list[Point]:
    down = caller.y < callee.y
    start = caller.center, caller.y + (caller.height if down else 0.0)
    end = callee.center, callee.y + (0.0 if down else callee.height)
    middle = (start[1] + end[1]) / 2
    # A straight edge would be hidden behind the box of a row in between, so it bows out around that box.
    widest = max(caller.width, callee.width)
    is_hidden = abs(end[1] - start[1]) > 1.5 * GAP_Y and abs(end[0] - start[0]) < widest / 2
    bow = 0.85 * widest if is_hidden else 0.0  # three quarters of it at the middle of the curve
    return [start, (start[0] + bow, middle), (end[0] + bow, middle), end]


def without_circles(names: Sequence[str], pairs: Iterable[Pair]) -> list[Pair]:
    """The edges, with those reversed that close a cycle, so that all can point down."""
    callees: dict[str, list[str]] = {name: [] for name in names}
    for caller, callee in pairs:
        callees[caller].append(callee)
    open_names: set[str] = set()
    closed: set[str] = set()
    downward: dict[Pair, None] = {}

    def visit(name: str) -> None:
        open_names.add(name)
        for callee in callees[name]:
            downward[(callee, name) if callee in open_names else (name, callee)] = None
            if callee not in closed and callee not in open_names:
                visit(callee)
        open_names.discard(name)
        closed.add(name)

    called = {callee for those in callees.values() for callee in those}
    for name in [*(name for name in names if name not in called), *names]:  # begin with the names that nobody calls
        if name not in closed:
            visit(name)
    return list(downward)


def rows_by_longest_path(names: Sequence[str], downward: Sequence[Pair]) -> dict[str, int]:
    """The row of each item: below all of its callers. Items without edges fill rows of their own."""
    callers: dict[str, list[str]] = {name: [] for name in names}
    for caller, callee in downward:
        callers[callee].append(caller)
    rows: dict[str, int] = {}

    def row(name: str) -> int:
        if name not in rows:
            rows[name] = max((row(caller) + 1 for caller in callers[name]), default=0)
        return rows[name]

    for name in names:
        row(name)
    # A caller whose only callee is far below is placed right above it.
    callees: dict[str, list[str]] = {name: [] for name in names}
    for caller, callee in downward:
        callees[caller].append(callee)
    for name in sorted(names, key=lambda name: -rows[name]):
        if callees[name] and not callers[name]:
            rows[name] = min(rows[callee] for callee in callees[name]) - 1
    alone = [name for name in names if not callers[name] and not callees[name]]
    for number, name in enumerate(alone):
        rows[name] = number // MOST_IN_A_ROW
    return rows


def _wrap(cluster: LayoutItem) -> None:
    """Give a cluster the size of its contents."""
    cluster.x = min(item.x for item in cluster.inside) - PADDING
    cluster.y = min(item.y for item in cluster.inside) - PADDING - HEADING
    inside = max(item.x + item.width for item in cluster.inside) + PADDING - cluster.x
    cluster.width = max(inside, cluster.width)  # its label may need more
    cluster.height = max(item.y + item.height for item in cluster.inside) + PADDING - cluster.y


def _move(item: LayoutItem, dx: float, dy: float) -> None:
    for part in _items(item):
        part.x += dx
        part.y += dy


def _items(item: LayoutItem) -> Iterator[LayoutItem]:
    yield item
    for part in item.inside:
        yield from _items(part)


def _leaves(item: LayoutItem) -> Iterator[LayoutItem]:
    return (part for part in _items(item) if not part.inside)
