"""What is saved of a picture as CSV."""

from __future__ import annotations

from ropewalk.page.chart import as_csv, point_rows
from ropewalk.page.pictures.graph import graph
from ropewalk.page.style import Style

HEAD = ["series", "point", "values"]


def test_points_have_their_names_and_all_their_values():
    option = {
        "series": [
            {"name": "loss", "data": [[1, 0.5], {"name": "last", "value": [2, 0.25]}]},
            {"name": "lives", "data": [{"name": "e0", "coords": [[0, 1], [5, 1]]}]},
        ]
    }
    assert point_rows(option) == [
        HEAD, ["loss", "", 1, 0.5], ["loss", "last", 2, 0.25], ["lives", "e0", 0, 1, 5, 1],
    ]  # fmt: skip


def test_bars_are_called_as_their_axis_calls_them():
    option = {"yAxis": {"type": "category", "data": ["lr", "width"]}, "series": [{"name": "share", "data": [0.9, 0.1]}]}
    assert point_rows(option) == [HEAD, ["share", "lr", 0.9], ["share", "width", 0.1]]


def test_the_edges_of_a_graph_are_saved_with_its_nodes():
    nodes = [{"name": name, "kind": "worker", "replicas": 1, "running": 1} for name in ("actor", "replay")]
    option = graph({"nodes": nodes, "edges": [{"from": "actor", "to": "replay", "calls_per_s": 7.0}]}, Style())
    assert point_rows(option)[-1] == ["calls", "actor to replay", "7/s"]


def test_no_cell_is_a_formula():
    assert as_csv([["=1+1", 2], ["-", "a,b"]]) == "'=1+1,2\r\n'-,\"a,b\"\r\n"


def test_nothing_has_a_head_alone():
    assert point_rows({}) == [HEAD]
