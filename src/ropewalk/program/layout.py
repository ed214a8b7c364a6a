"""Where the boxes of a graph go: rows by longest path, few crossings, boxes in boxes, nothing on top of anything.

Pure geometry in the manner of Sugiyama, Tagawa, Toda ("Methods for Visual
Understanding of Hierarchical System Structures", 1981): 1. turn edges that close a
circle, 2. give each item the row after its lowest caller, 3. let long edges
hold a place in the rows they pass, 4. order rows by the mean place of
neighbours, 5. move items over their neighbours. A cluster is laid out by itself and is one
item of the level above, which is why it covers none but its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Pair = tuple[str, str]
Point = tuple[float, float]

GAP_X, GAP_Y = 36.0, 60.0
#: Around the inside of a cluster, and above it for its label.
PADDING, HEADING = 18.0, 26.0
#: So many items without edges stand beside each other.
MOST_IN_A_ROW = 4
_PORT_GAP = 16.0
_SWEEPS = 8


@dataclass(slots=True)
class Item:
    """A box, or a cluster of boxes; `place` fills in where it is."""

    name: str
    width: float = 0.0
    height: float = 0.0
    inside: list[Item] = field(default_factory=list["Item"])
    x: float = 0.0
    """Of its left edge."""
    y: float = 0.0
    """Of its upper edge."""
    row_top: float = 0.0
    """The upper edge of the row it stands in."""
    row_bottom: float = 0.0
    passing: list[Item] = field(default_factory=list["Item"])
    """What long edges hold free in its rows."""

    @property
    def center(self) -> float:
        return self.x + self.width / 2


@dataclass(slots=True)
class Passages:
    """What each edge passes, from its caller on."""

    leaving: dict[Pair, list[Item]] = field(default_factory=dict[Pair, list[Item]])
    """Rows below the caller, in each cluster that the edge leaves."""
    between: dict[Pair, list[Item]] = field(default_factory=dict[Pair, list[Item]])
    """Rows of the cluster that holds both ends."""
    entering: dict[Pair, list[Item]] = field(default_factory=dict[Pair, list[Item]])
    """Rows above the callee, in each cluster that the edge enters."""

    def of(self, edge: Pair, *, down: bool) -> list[Item]:
        """All of them; an edge that goes up leaves its clusters at once."""
        between = self.between.get(edge, [])
        return [*self.leaving.get(edge, ()), *between, *self.entering.get(edge, ())] if down else between


def place(root: Item, edges: Iterable[Pair]) -> dict[Pair, list[Point]]:
    """Set the place and the size of the root and of everything inside.

    Args:
        root: a cluster; items without anything inside have their width and height, clusters their least width.
        edges: pairs of names of innermost items, caller and callee; both different.

    Returns:
        For each edge the points where its curve is vertical, from caller to callee.
    """
    edges = list(dict.fromkeys(edges))
    passages = Passages()
    _place_inside(root, edges, passages)
    _move(root, -root.x, -root.y)
    return _routes(root, edges, passages)


def _place_inside(cluster: Item, edges: Sequence[Pair], passages: Passages) -> None:
    holder = {name: item.name for item in cluster.inside for name in _leaves(item)}
    for item in cluster.inside:
        if item.inside:
            _place_inside(item, edges, passages)
    between = [edge for edge in edges if edge[0] in holder and edge[1] in holder]
    lifted = [(holder[a], holder[b]) for a, b in between if holder[a] != holder[b]]
    names = [item.name for item in cluster.inside]
    downward = without_circles(names, dict.fromkeys(lifted))
    row_of = rows_by_longest_path(names, downward)
    last = max(row_of.values())

    # Long edges, and those that leave the cluster below or enter it above, hold a place in each row that they pass.
    leaving = {edge: holder[edge[0]] for edge in edges if edge[0] in holder and edge[1] not in holder}
    entering = {edge: holder[edge[1]] for edge in edges if edge[1] in holder and edge[0] not in holder}
    chains: dict[Pair, list[str]] = {}
    for a, b in downward:
        chains[a, b] = [a, *(f"{a}\n{b}\n{row}" for row in range(row_of[a] + 1, row_of[b])), b]
    for name in dict.fromkeys(leaving.values()):
        chains[name, ""] = [name, *(f"{name}\n\n{row}" for row in range(row_of[name] + 1, last + 1))]
    for name in dict.fromkeys(entering.values()):
        chains["", name] = [*(f"\n{name}\n{row}" for row in range(row_of[name])), name]
    items = {item.name: item for item in cluster.inside}
    rows: list[list[Item]] = [[] for _ in range(last + 1)]
    for name in names:
        rows[row_of[name]].append(items[name])
    for (upper, _), chain in chains.items():
        first = row_of[upper] if upper else 0
        for row, name in enumerate(chain, first):
            if name not in items:
                items[name] = Item(name)
                rows[row].append(items[name])
    links = [(a, b) for chain in chains.values() for a, b in itertools.pairwise(chain)]
    _order(rows, links)
    _spread(rows, links)

    y = cluster.y
    for row in rows:
        height = max(item.height for item in row)
        for item in row:
            if item.name not in row_of:
                item.height = height
                cluster.passing.append(item)
            _move(item, 0.0, y + (height - item.height) / 2 - item.y)
            item.row_top, item.row_bottom = y, y + height
        y += height + GAP_Y
    for edge in between:
        a, b = holder[edge[0]], holder[edge[1]]
        if (a, b) in chains:
            passages.between[edge] = [items[name] for name in chains[a, b][1:-1]]
        elif (b, a) in chains:  # it was turned round
            passages.between[edge] = [items[name] for name in chains[b, a][-2:0:-1]]
    for edge, name in leaving.items():
        passages.leaving.setdefault(edge, []).extend(items[step] for step in chains[name, ""][1:])
    for edge, name in entering.items():
        passages.entering.setdefault(edge, [])[:0] = [items[step] for step in chains["", name][:-1]]
    _wrap(cluster)


def without_circles(names: Sequence[str], pairs: Iterable[Pair]) -> list[Pair]:
    """The edges with those turned round that close a circle, so that all can point down."""
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
    for name in [*(name for name in names if name not in called), *names]:  # begin where nobody calls
        if name not in closed:
            visit(name)
    return list(downward)


def rows_by_longest_path(names: Sequence[str], downward: Sequence[Pair]) -> dict[str, int]:
    """The row of each item: below all of its callers. Items without edges fill rows of their own number."""
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
    # A caller of one callee far below stands right above it.
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


def _order(rows: list[list[Item]], links: Sequence[Pair]) -> None:
    """Order each row by the mean place of the neighbours above, then below, and so on; keep the best order seen."""
    best, fewest = [list(row) for row in rows], _crossings(rows, links)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours: dict[str, list[str]] = {}
        for a, b in links:
            neighbours.setdefault(b if down else a, []).append(a if down else b)
        for number in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
            beside = rows[number - 1 if down else number + 1]
            places = {item.name: place for place, item in enumerate(beside)}
            own = {item.name: float(place) for place, item in enumerate(rows[number])}
            for name in own:
                near = [places[other] for other in neighbours.get(name, ()) if other in places]
                if near:
                    own[name] = sum(near) / len(near)
            rows[number].sort(key=lambda item: own[item.name])
        crossings = _crossings(rows, links)
        if crossings <= fewest:  # later ones are better spread
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best


def _crossings(rows: list[list[Item]], links: Sequence[Pair]) -> int:
    places = {item.name: (number, place) for number, row in enumerate(rows) for place, item in enumerate(row)}
    ends = [(places[a][0], places[a][1], places[b][1]) for a, b in links]
    return sum(
        row == other_row and (a - other_a) * (b - other_b) < 0
        for number, (row, a, b) in enumerate(ends)
        for other_row, other_a, other_b in ends[:number]
    )


def _spread(rows: list[list[Item]], links: Sequence[Pair]) -> None:
    """Move each item to the middle of its neighbours, as far as the row leaves room."""
    items = {item.name: item for row in rows for item in row}
    neighbours: dict[str, list[Item]] = {name: [] for name in items}
    for a, b in links:
        neighbours[a].append(items[b])
        neighbours[b].append(items[a])
    for row in rows:
        width = sum(item.width for item in row) + GAP_X * (len(row) - 1)
        x = -width / 2
        for item in row:
            _move(item, x - item.x, 0.0)
            x += item.width + GAP_X
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wishes: list[float] = []
            for item in row:
                near = [other.center for other in neighbours[item.name]]
                wishes.append((sum(near) / len(near) if near else item.center) - item.width / 2)
            for item, x in zip(row, apart(wishes, [item.width + GAP_X for item in row]), strict=True):
                _move(item, x - item.x, 0.0)


def apart(wishes: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The places nearest to those wished for (least squares) at which each thing has its width.

    This is isotonic regression on the wishes less the widths before them, by pooling neighbours.

    Example:
        >>> apart([0.0, 0.0, 100.0], [10.0, 10.0, 10.0])
        [-5.0, 5.0, 100.0]
    """
    before = [sum(widths[:number]) for number in range(len(widths))]
    pools: list[tuple[float, int]] = []
    for wish, offset in zip(wishes, before, strict=True):
        total, count = wish - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            more, many = pools.pop()
            total, count = total + more, count + many
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, before, strict=True)]


def _wrap(cluster: Item) -> None:
    """Give a cluster the size of what is inside."""
    cluster.x = min(item.x for item in cluster.inside) - PADDING
    cluster.y = min(item.y for item in cluster.inside) - PADDING - HEADING
    inside = max(item.x + item.width for item in cluster.inside) + PADDING - cluster.x
    cluster.width = max(inside, cluster.width)  # its label may need more
    cluster.height = max(item.y + item.height for item in cluster.inside) + PADDING - cluster.y


def _move(item: Item, dx: float, dy: float) -> None:
    item.x += dx
    item.y += dy
    item.row_top += dy
    item.row_bottom += dy
    for part in (*item.inside, *item.passing):
        _move(part, dx, dy)


def _leaves(item: Item) -> Iterable[str]:
    if not item.inside:
        yield item.name
    for part in item.inside:
        yield from _leaves(part)


def _routes(root: Item, edges: Sequence[Pair], passages: Passages) -> dict[Pair, list[Point]]:
    boxes: dict[str, Item] = {}

    def collect(item: Item) -> None:
        boxes.update({} if item.inside else {item.name: item})
        for part in item.inside:
            collect(part)

    collect(root)
    # Each edge leaves its box, and enters the other, at a port of its own, in the order of where it goes.
    ports: dict[tuple[str, bool], list[tuple[float, Pair, bool]]] = {}
    for edge in edges:
        caller, callee = boxes[edge[0]], boxes[edge[1]]
        down = caller.y < callee.y
        through = passages.of(edge, down=down)
        ports.setdefault((caller.name, down), []).append((through[0].x if through else callee.center, edge, True))
        ports.setdefault((callee.name, not down), []).append((through[-1].x if through else caller.center, edge, False))
    at: dict[tuple[Pair, bool], Point] = {}
    for (name, below), those in ports.items():
        box = boxes[name]
        gap = min(_PORT_GAP, box.width / (len(those) + 1))
        for number, (_, edge, leaves) in enumerate(sorted(those)):
            x = box.center + (number - (len(those) - 1) / 2) * gap
            at[edge, leaves] = x, box.y + (box.height if below else 0.0)
    routes: dict[Pair, list[Point]] = {}
    for edge in edges:
        down = boxes[edge[0]].y < boxes[edge[1]].y
        middle: list[Point] = []
        for item in passages.of(edge, down=down):
            upper, lower = (item.x, item.y), (item.x, item.y + item.height)
            middle += [upper, lower] if down else [lower, upper]
        # A box may be lower than its row: out of the row first, and then to the side.
        (x, y), (end_x, end_y) = at[edge, True], at[edge, False]
        caller, callee = boxes[edge[0]], boxes[edge[1]]
        out = x, caller.row_bottom if down else caller.row_top
        into = end_x, callee.row_top if down else callee.row_bottom
        routes[edge] = list(dict.fromkeys([(x, y), out, *middle, into, (end_x, end_y)]))  # no step of no length
    return routes
