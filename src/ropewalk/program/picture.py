"""The graph of a program as a picture (SVG): callers above callees, groups as boxes, replicas as stacks."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from ropewalk.program import layout
from ropewalk.program.drawing import DrawnBox, DrawnGraph
from ropewalk.program.layout import LayoutItem, Point
from ropewalk.program.node import NodeSpec
from ropewalk.quantities import counted, shown_size

_COLOURS = {
    "service": ("#2f6fde", "#eef4ff"),
    "worker": ("#1d9a6c", "#ebf9f3"),
    "cache": ("#b7791f", "#fff8e8"),
    "rank_group": ("#8a4fd3", "#f5effe"),
    "pool": ("#c2456b", "#fdeff3"),
}
"""Outline and fill colours for each kind of node."""
_OTHER_COLOUR = ("#5b6472", "#f4f5f7")
_MISSING_COLOUR = ("#d12f2f", "#fff5f5")
_MARGIN, _TITLE_HEIGHT = 24.0, 46.0
_BOX_HEIGHT, _LEAST_WIDTH = 62.0, 132.0
_SHEET = 4.0
"""Offset of each sheet of the stack that shows a node's replicas."""

_STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2733 }
  .title { font-size: 17px; font-weight: 600 }
  .sub { font-size: 12px; fill: #6b7482 }
  .name { font-size: 14px; font-weight: 600 }
  .facts { font-size: 11px; fill: #5b6472 }
  .kind { font-size: 10px; font-weight: 600; letter-spacing: .06em }
  .times { font-size: 11px; font-weight: 700; fill: #ffffff }
  .label { font-size: 12px; font-weight: 600; fill: #6b7482; stroke: #f5f6f9; stroke-width: 4px; paint-order: stroke }
  .edge { fill: none; stroke: #8b95a5; stroke-width: 1.5 }
""".strip("\n")


def svg(graph: DrawnGraph) -> str:
    """The graph as a self-contained picture; pointing at an edge shows its arguments."""
    specs = {spec.name: spec for spec in graph.specs}
    root = _item(graph.boxes())
    root.inside += [LayoutItem(name, _node_width(name, "not added", ""), _BOX_HEIGHT) for name in graph.missing]
    arguments = graph.arguments()
    between = [pair for pair in arguments if pair[0] != pair[1]]
    routes = layout.place(root, between) if root.inside else {}

    summary = _summary(graph)
    width = max(root.width, _text_width(graph.name, 17), _text_width(summary, 12)) + 2 * _MARGIN
    top = _MARGIN + _TITLE_HEIGHT - layout.HEADING - layout.PADDING  # the root's own heading is the title
    height = top + root.height + _MARGIN
    left = (width - root.width) / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label={quoteattr(f"{graph.name}: {summary}")}>',
        f"<style>\n{_STYLE}\n</style>",
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.8 L10 5 L0 9.2 z" fill="#8b95a5"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#ffffff"/>',
        f'<text class="title" x="{_MARGIN}" y="{_MARGIN + 12}">{escape(graph.name)}</text>',
        f'<text class="sub" x="{_MARGIN}" y="{_MARGIN + 31}">{escape(summary)}</text>',
        f'<g transform="translate({left:.1f} {top:.1f})">',
    ]
    for item in root.inside:
        lines += _clusters(item, depth=0)
    for (caller, callee), route in routes.items():
        title = f"{caller} calls {callee}: {', '.join(arguments[caller, callee])}"
        lines.append(_edge(_curve(route), title))
    lines += _labels(root)
    for item in _leaves(root):
        lines += _node(item, specs.get(item.name))
        if (item.name, item.name) in arguments:
            lines.append(_edge(_loop(item), f"{item.name} calls itself: {', '.join(arguments[item.name, item.name])}"))
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _item(box: DrawnBox) -> LayoutItem:
    """The sizes of a box's nodes, before layout."""
    nodes: list[LayoutItem] = []
    for spec in box.specs:
        width, behind = _node_width(spec.name, spec.node.kind, _facts(spec)), _num_sheets(spec) * _SHEET
        nodes.append(LayoutItem(spec.name, width + behind, _BOX_HEIGHT + behind))
    clusters = [_item(inside) for inside in box.boxes.values()]
    label_width = _text_width(box.label, 12) * 1.06 + 28 if box.path else 0.0
    return LayoutItem(
        f"{box.path}\n{box.label}", label_width, inside=[*nodes, *clusters]
    )  # names of nodes have no line breaks


def _summary(graph: DrawnGraph) -> str:
    units = {spec.unit: spec.replicas for spec in graph.specs}
    num_processes = sum(units.values())
    nodes = counted(len(graph.specs), "node")
    return f"{nodes} · {counted(num_processes, 'process', 'es')}"


def _facts(spec: NodeSpec) -> str:
    """The facts of a node that differ from the defaults: what it runs, its resources, its rule."""
    facts = [spec.node.label] if spec.node.label.lower() != spec.name.lower() else []
    if spec.resources.cpus != 1:
        facts.append(f"{spec.resources.cpus:g} CPU")
    if spec.resources.gpus:
        facts.append(f"{spec.resources.gpus} GPU")
    if spec.resources.memory_bytes is not None:
        facts.append(f"{shown_size(spec.resources.memory_bytes)}")
    if spec.restart.policy != "never":
        together = " together" if spec.restart.strategy == "together" else ""
        facts.append(f"↻ {spec.restart.policy.replace('_', ' ')}{together}")
    if not spec.essential:
        facts.append("not essential")
    return " · ".join(facts)


def _node_width(name: str, kind: str, facts: str) -> float:
    wide = max(_text_width(name, 14) * 1.06, _text_width(facts, 11), _text_width(kind.upper(), 10) * 1.2 + 60)
    return max(_LEAST_WIDTH, wide + 28)


def _num_sheets(spec: NodeSpec | None) -> int:
    """Number of sheets that are drawn behind a node."""
    return min(spec.replicas - 1, 2) if spec and spec.replicas > 1 else 0


def _node(item: LayoutItem, spec: NodeSpec | None) -> Iterator[str]:
    colour, inside = _COLOURS.get(spec.node.kind, _OTHER_COLOUR) if spec else _MISSING_COLOUR
    behind = _num_sheets(spec) * _SHEET
    x, y, width, height = item.x, item.y + behind, item.width - behind, item.height - behind
    dashes = "" if spec else ' stroke-dasharray="5 4"'
    box = f'rx="8" fill="{inside}" stroke="{colour}" stroke-width="1.3"{dashes}'
    yield "<g>"
    replicas = spec.replicas if spec else 1
    for sheet in range(_num_sheets(spec), 0, -1):
        offset = sheet * _SHEET
        yield f'<rect x="{x + offset:.1f}" y="{y - offset:.1f}" width="{width:.1f}" height="{height:.1f}" {box}/>'
    yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {box}/>'
    kind = spec.node.kind if spec else "not added"
    facts = _facts(spec) if spec else ""
    yield f'<text class="kind" x="{x + 14:.1f}" y="{y + 18:.1f}" style="fill:{colour}">{escape(kind.upper())}</text>'
    name_y = y + (36 if facts else 41)
    yield f'<text class="name" x="{x + 14:.1f}" y="{name_y:.1f}">{escape(item.name)}</text>'
    if facts:
        yield f'<text class="facts" x="{x + 14:.1f}" y="{y + 52:.1f}">{escape(facts)}</text>'
    if replicas != 1:
        text = f"x{replicas}"
        badge = _text_width(text, 11) + 14
        left = x + width - badge - 8
        yield f'<rect x="{left:.1f}" y="{y + 7:.1f}" width="{badge:.1f}" height="17" rx="8.5" fill="{colour}"/>'
        middle = left + badge / 2
        yield f'<text class="times" x="{middle:.1f}" y="{y + 19.5:.1f}" text-anchor="middle">{text}</text>'
    yield "</g>"


def _clusters(item: LayoutItem, depth: int) -> Iterator[str]:
    if not item.inside:
        return
    dashes = ' stroke-dasharray="6 4"' if "@" in item.name else ""  # nodes that share a process or host
    fill = "#f7f8fa" if depth % 2 == 0 else "#eff1f5"
    yield (
        f'<rect x="{item.x:.1f}" y="{item.y:.1f}" width="{item.width:.1f}" height="{item.height:.1f}" rx="12" '
        f'fill="{fill}" stroke="#d3d8e0"{dashes}/>'
    )
    for part in item.inside:
        yield from _clusters(part, depth + 1)


def _labels(item: LayoutItem) -> Iterator[str]:
    """The labels of clusters, which stay readable where an edge passes behind them."""
    for part in item.inside:
        if part.inside:
            label = part.name.partition("\n")[2]
            yield f'<text class="label" x="{part.x + 14:.1f}" y="{part.y + 21:.1f}">{escape(label)}</text>'
        yield from _labels(part)


def _edge(path: str, title: str) -> str:
    return f'<path class="edge" d="{path}" marker-end="url(#arrow)"><title>{escape(title)}</title></path>'


def _curve(route: Sequence[Point]) -> str:
    (x, y), *others = route
    return f"M{x:.1f} {y:.1f} C" + " ".join(f"{x:.1f} {y:.1f}" for x, y in others)


def _loop(item: LayoutItem) -> str:
    x, y = item.x + item.width, item.y + item.height / 2
    return f"M{x:.1f} {y + 10:.1f} C{x + 24:.1f} {y + 14:.1f} {x + 24:.1f} {y - 14:.1f} {x + 1:.1f} {y - 8:.1f}"


def _leaves(item: LayoutItem) -> Iterator[LayoutItem]:
    if not item.inside:
        yield item
    for part in item.inside:
        yield from _leaves(part)


def _text_width(text: str, size: float) -> float:
    """An estimate, rather too large, of a text's width: the reader's fonts are not known."""
    ems = sum(
        1.05
        if unicodedata.east_asian_width(letter) in "WF"
        else 0.36
        if letter in "iljtfrI.,:;'!|·()[] "
        else 0.92
        if letter in "mwMW@%"
        else 0.72
        if letter.isupper()
        else 0.6
        for letter in text
    )
    return ems * size
