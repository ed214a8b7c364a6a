from __future__ import annotations

import itertools
from typing import Any

from ropewalk.page.call_rates import CallRates


def looked(**done: int) -> dict[str, Any]:
    return {"nodes": [{"name": name, "calls_done": number} for name, number in done.items()], "edges": []}


def rates(data: dict[str, Any]) -> dict[str, float | None]:
    return {node["name"]: node.get("calls_per_s") for node in data["nodes"]}


def test_a_rate_is_known_from_the_second_look():
    added = CallRates()
    assert rates(added.add(looked(a=10), 100.0)) == {"a": None}
    assert rates(added.add(looked(a=30, b=7), 102.0)) == {"a": 10.0, "b": None}


def test_rates_are_averaged_over_the_last_looks():
    added = CallRates()
    added.add(looked(a=0), 0.0)
    added.add(looked(a=10), 1.0)
    assert rates(added.add(looked(a=10), 2.0)) == {"a": 5.0}


def test_where_calls_have_ended_the_rate_becomes_zero():
    added = CallRates()
    added.add(looked(a=0), 0.0)
    shown = [rates(added.add(looked(a=100), float(at)))["a"] or 0.0 for at in range(1, 20)]
    assert shown[0] == 100.0 and shown[-1] == 0.0
    assert all(before > after or before == after == 0.0 for before, after in itertools.pairwise(shown))


def test_edges_have_rates_of_their_own_beside_those_of_nodes():
    added = CallRates()
    for at in (0, 1):
        edges = [{"from": "a", "to": "b", "calls": 3 * at}, {"from": "c", "to": "b", "calls": 4 * at}]
        data = added.add({"nodes": [{"name": "b", "calls_done": 5 * at}], "edges": edges}, float(at))
    assert rates(data) == {"b": 5.0}
    assert [edge["calls_per_s"] for edge in data["edges"]] == [3.0, 4.0]


def test_a_node_that_was_restarted_has_no_negative_rate():
    added = CallRates()
    added.add(looked(a=100), 0.0)
    assert rates(added.add(looked(a=3), 1.0)) == {"a": 0.0}


def test_the_same_look_twice_keeps_the_rates():
    added = CallRates()
    added.add(looked(a=0), 0.0)
    added.add(looked(a=4), 1.0)
    assert rates(added.add(looked(a=4), 1.0)) == {"a": 4.0}


def test_the_data_of_the_watcher_is_not_changed():
    data = looked(a=1)
    added = CallRates()
    added.add(data, 0.0)
    added.add(data, 1.0)
    assert data == looked(a=1)
