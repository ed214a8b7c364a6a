from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.page.pictures.graph import graph, graph_height, layered
from ropewalk.page.style import Style


def node(name: str, **more: Any) -> dict[str, Any]:
    counts = {"replicas": 1, "running": 1, "calls_done": 0, "calls_waiting": 0, "mean_call_s": 0.0}
    return {"name": name, "kind": "service", **counts, **more}


def data(*nodes: dict[str, Any], edges: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"nodes": list(nodes), "edges": [dict(zip(("from", "to"), edge, strict=True)) for edge in edges]}


def test_callers_are_to_the_left_of_what_they_call():
    places = layered(["c", "b", "a"], [("a", "b"), ("b", "c"), ("a", "c")])
    assert {name: column for name, (column, _) in places.items()} == {"a": 0, "b": 1, "c": 2}


def test_nodes_that_call_each_other_in_a_cycle_have_places_too():
    assert {x for x, _ in layered(["a", "b"], [("a", "b"), ("b", "a")]).values()} == {0, 1}
    assert layered(["a"], [("a", "a")]) == {"a": (0, 0)}


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("abcdefg")), max_size=20))
def test_no_two_nodes_have_one_place(edges: list[tuple[str, str]]):
    places = layered("abcdefg", edges)
    assert len(set(places.values())) == 7


def test_a_node_shows_its_rate_latency_replicas_and_what_waits():
    option = graph(
        data(
            node("actor", replicas=8, running=7, calls_done=9, calls_per_s=93.2, mean_call_s=0.0042, calls_waiting=14)
        ),
        Style(),
    )
    (shown,) = option["series"][0]["nodes"]
    words = shown["label"]["formatter"]
    for part in ("actor", "× 8", "7 of 8 run", "93.2 calls/s", "4.2 ms", "14 waiting"):
        assert part in words
    assert shown["itemStyle"]["borderType"] == "dashed"


def test_replicas_that_have_ended_are_not_lacking():
    nodes = graph(data(node("a", replicas=3, running=1, over=2), node("b", replicas=3, running=1, over=1)), Style())
    ended, short = nodes["series"][0]["nodes"]
    assert "2 of 3 ended" in ended["label"]["formatter"] and "run}" not in ended["label"]["formatter"]
    assert ended["itemStyle"]["borderType"] == "solid"
    assert "1 of 3 run" in short["label"]["formatter"] and short["itemStyle"]["borderType"] == "dashed"


def test_each_caller_of_a_node_has_a_rate_of_its_own():
    shared = data(node("a"), node("b"), node("c", calls_per_s=5.0), edges=("ac", "bc", "ab"))
    for edge, rate in zip(shared["edges"], (1.0, 4.0, 0.0), strict=True):
        edge["calls_per_s"] = rate
    links = graph(shared, Style())["series"][0]["links"]
    assert [(one["label"]["show"], one["label"]["formatter"]) for one in links] == [
        (True, "1/s"), (True, "4/s"), (False, "0/s"),
    ]  # fmt: skip
    assert links[0]["lineStyle"]["width"] < links[1]["lineStyle"]["width"]


def test_an_edge_to_a_node_that_is_not_there_is_left_out():
    assert graph(data(node("a"), edges=("ab",)), Style())["series"][0]["links"] == []


def test_a_column_that_an_edge_passes_has_a_free_row_for_it():
    places = layered("abc", [("a", "b"), ("b", "c"), ("a", "c")])
    assert places == {"a": (0, 0), "b": (1, 0.5), "c": (2, 0)}
    links = graph(data(node("a"), node("b"), node("c"), edges=("ab", "bc", "ac")), Style())["series"][0]["links"]
    assert [one["lineStyle"]["curveness"] for one in links] == [0, 0, 0]


def test_an_edge_that_would_lie_on_another_one_is_bent():
    links = graph(data(node("a"), node("b"), edges=("ab", "ba")), Style())["series"][0]["links"]
    assert [one["lineStyle"]["curveness"] > 0 for one in links] == [False, True]


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "{name|x}", "\x1b[31mred", "x" * 500])
def test_a_name_is_text_and_no_markup(name: str):
    option = graph(data(node(name, kind=name)), Style())
    label = option["series"][0]["nodes"][0]["label"]["formatter"]
    assert label.count("{") == label.count("}") == 3  # name, replicas and kind
    assert "\x1b" not in json.dumps(option)
    assert option["tooltip"]["formatter"] == "{b}"  # ECharts escapes it


def test_without_nodes_there_is_no_picture():
    assert graph({}, Style()) == graph(data(), Style()) == {}


def test_the_height_grows_with_the_nodes_of_a_column():
    one = graph_height(data(node("a")))
    assert graph_height(data(node("a"), node("b"), node("c"))) > graph_height(data(node("a"), node("b"))) > one
