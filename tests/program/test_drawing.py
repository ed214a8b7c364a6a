"""The graph as DOT, JSON and a picture."""

from __future__ import annotations

import base64
import itertools
import json
import random
import shutil
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines.resources import Resources
from ropewalk.program import layout
from ropewalk.program.layout import LayoutItem, placed_by_graphviz, placed_in_rows, without_circles
from ropewalk.program.nodes.colocate import Colocate
from ropewalk.program.nodes.service import Service
from ropewalk.program.nodes.worker import Worker
from ropewalk.program.program import Program
from ropewalk.program.restart_rule import Restart

SVG = "{http://www.w3.org/2000/svg}"


class Store:
    def __init__(self, other: Any = None) -> None: ...
    def push(self) -> None: ...


class Fancy:
    """Its name must be escaped."""


Fancy.__name__ = 'Fancy<"&\\'


def work(*args: Any, **kwargs: Any) -> None: ...


@pytest.fixture
def program() -> Program:
    program = Program("demo")
    later = program.declare("judge")
    store = program.add(Service(Store, later), name="store", resources=Resources(cpus=2, memory="4Gi"))
    program.add(Service(Store, store), name="judge", restart=Restart("on_failure"))
    with program.group("rollouts"), program.group("actors"):
        program.add(Worker(work, store, kw=[store]), name="actor", replicas=64)
    program.add(Colocate({"x": Service(Store, store), "y": Service(Fancy)}), name="host")
    return program


def test_dot_has_groups_as_clusters_and_quotes_what_it_must(program: Program) -> None:
    text = program.graph("dot")
    assert text.startswith('digraph "demo" {') and text.count("{") == text.count("}") == 4
    assert 'subgraph "cluster/rollouts/actors" {' in text and 'label="host · one process";' in text
    assert '"actor" [label="actor x64\\nworker"];' in text
    assert '"actor" -> "store" [tooltip="args[0], kwargs[\'kw\'][0]"];' in text


def test_json_tells_each_node_and_each_edge(program: Program) -> None:
    graph = json.loads(program.graph("json"))
    assert graph["name"] == "demo" and [node["name"] for node in graph["nodes"]] == [
        "store",
        "judge",
        "actor",
        "x",
        "y",
    ]
    store, judge, actor, x, _ = graph["nodes"]
    assert store["resources"] == {"cpus": 2, "gpus": 0, "memory_bytes": 4 * 2**30}
    assert judge["restart"]["policy"] == "on_failure" and store["restart"]["policy"] == "never"
    assert (actor["kind"], actor["replicas"], actor["group"], x["unit"]) == ("worker", 64, "rollouts/actors", "host")
    assert {"source": "actor", "target": "store", "argument": "kwargs['kw'][0]"} in graph["edges"]


def test_the_picture_is_xml_with_every_node_group_and_edge(program: Program) -> None:
    picture = xml.fromstring(program.graph("svg"))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"demo", "store", "judge", "actor", "x64", "rollouts", "actors", "host · one process"} <= set(texts)
    assert "5 nodes · 67 processes" in texts
    assert any(text and 'Fancy<"&\\' in text for text in texts), "what users name arrives escaped"
    titles = [str(title.text) for title in picture.iter(f"{SVG}title")]
    assert sorted(titles) == [
        "actor calls store: args[0], kwargs['kw'][0]",
        "judge calls store: args[0]",
        "store calls judge: args[0]",
        "x calls store: args[0]",
    ]
    for edge in (path for path in picture.iter(f"{SVG}path") if path.get("class") == "edge"):
        assert edge.get("marker-end") == "url(#arrow)", "the arrow is where the caller points"


def test_a_notebook_shows_the_picture_whose_styles_stay_its_own(program: Program) -> None:
    shown = xml.fromstring(program._repr_html_() + "</img>")
    kind, _, data = shown.attrib["src"].partition(",")
    assert (shown.tag, kind) == ("img", "data:image/svg+xml;base64")
    assert base64.b64decode(data).decode() == program.graph("svg")


def test_graphs_that_are_not_sound_can_be_drawn_too() -> None:
    program = Program("sick")
    assert xml.fromstring(program.graph("svg")) is not None
    later = program.declare("me")
    program.add(Service(Store, later), name="me")
    program.add(Worker(work, program.declare("nobody")), name="worker", replicas=0)
    texts = [text.text for text in xml.fromstring(program.graph("svg")).iter(f"{SVG}text")]
    assert {"nobody", "NOT ADDED", "x0"} <= set(texts)
    assert '"nobody" [style=dashed' in program.graph("dot")


def boxes(item: LayoutItem) -> list[LayoutItem]:
    return [item, *(box for part in item.inside for box in boxes(part))]


def overlap(a: LayoutItem, b: LayoutItem, gap: float) -> bool:
    """Whether two boxes are not as far from each other as they should be."""
    beside = a.x + a.width + gap <= b.x or b.x + b.width + gap <= a.x
    return not (beside or a.y + a.height + gap <= b.y or b.y + b.height + gap <= a.y)


def test_a_program_is_drawn_without_graphviz_too(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout.shutil, "which", lambda name: None)
    test_the_picture_is_xml_with_every_node_group_and_edge(program)
    test_graphs_that_are_not_sound_can_be_drawn_too()


def test_a_graphviz_that_fails_is_not_needed(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dot = tmp_path / "dot"
    dot.write_text("#!/bin/sh\nexit 1\n")
    dot.chmod(0o755)
    monkeypatch.setattr(layout.shutil, "which", lambda name: str(dot))
    test_the_picture_is_xml_with_every_node_group_and_edge(program)


@pytest.mark.parametrize("place", [placed_in_rows, placed_by_graphviz])
@pytest.mark.parametrize("seed", range(30))
def test_no_box_covers_another_and_each_lies_in_its_cluster(seed: int, place: Any) -> None:
    if place is placed_by_graphviz and not shutil.which("dot"):
        pytest.skip("needs Graphviz")
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(chance.randint(1, 25))]

    def items(those: list[str], depth: int) -> list[LayoutItem]:
        made: list[LayoutItem] = []
        while those:
            taken = [those.pop() for _ in range(min(len(those), chance.randint(1, 4)))]
            if depth < 3 and chance.random() < 0.4:
                made.append(LayoutItem(f"cluster of {taken}", inside=items(taken, depth + 1)))
            else:
                made += [LayoutItem(name, chance.uniform(50, 200), 60) for name in taken]
        return made

    gap = 30 if place is placed_in_rows else 1  # Graphviz measures from box to box, and less to the edge of a cluster
    root = LayoutItem("root", inside=items(list(names), 0))
    edges = {(a, b) for a, b in itertools.product(names, names) if a != b and chance.random() < 0.1}
    routes = place(root, sorted(edges))
    assert routes is not None and set(routes) == edges

    def check(cluster: LayoutItem) -> None:
        for a, b in itertools.combinations(cluster.inside, 2):
            assert not overlap(a, b, gap), (a, b)
        for part in cluster.inside:
            assert cluster.x <= part.x and part.x + part.width <= cluster.x + cluster.width + 1e-6
            assert cluster.y <= part.y and part.y + part.height <= cluster.y + cluster.height + 1e-6
            if part.inside:
                check(part)

    check(root)
    found = {box.name: box for box in boxes(root)}
    for (caller, callee), route in routes.items():
        for name, (x, y) in ((caller, route[0]), (callee, route[-1])):
            box = found[name]
            assert box.x - 1 <= x <= box.x + box.width + 1, "edges end at their boxes"
            assert box.y - 1 <= y <= box.y + box.height + 1
        assert len(route) % 3 == 1, "a beginning, and three points for each piece"


def test_an_edge_that_passes_a_row_is_not_hidden_by_the_box_there() -> None:
    root = LayoutItem("root", inside=[LayoutItem(name, 140, 60) for name in "abc"])
    routes = placed_in_rows(root, [("a", "b"), ("b", "c"), ("a", "c")])
    (start, *_), (_, box, _) = routes["a", "b"], root.inside
    assert start[0] == box.center
    xs = [x for x, _ in routes["a", "c"]]
    assert (xs[0] + 3 * xs[1] + 3 * xs[2] + xs[3]) / 8 > box.x + box.width


def test_circles_are_opened_and_nothing_else_is_turned() -> None:
    assert without_circles("abc", [("a", "b"), ("b", "c")]) == [("a", "b"), ("b", "c")]
    assert without_circles("abc", [("a", "b"), ("b", "c"), ("c", "a")]) == [("a", "b"), ("b", "c"), ("a", "c")]
    assert without_circles("ab", [("a", "b"), ("b", "a")]) == [("a", "b")]
