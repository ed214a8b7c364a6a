"""How many processes a pod hosts, by the nodes that there are."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.engines.kubernetes_nodes import nodes_for, processes_per_pod
from ropewalk.engines.kubernetes_options import KubernetesOptions
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError


def node(name: str, cpu: str = "8", memory: str = "32Gi", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    ready = spec.pop("ready", "True")
    return {
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": ready}],
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "10.0.0.7"}],
        },
    }


def per_pod(nodes: list[dict[str, Any]] | None, process: Resources, **options: Any) -> int:
    asked = KubernetesOptions(**options)
    return processes_per_pod(None if nodes is None else nodes_for(asked, nodes), process, asked)


def test_a_pod_fits_on_the_smallest_node_that_holds_a_process() -> None:
    nodes = [node("big", "64", "256Gi"), node("small", "7910m", "30Gi"), node("tiny", "500m", "1Gi")]
    assert per_pod(nodes, Resources(cpus=1)) == 7
    assert per_pod(nodes, Resources(cpus=1, memory="8Gi")) == 3
    assert per_pod(nodes, Resources(cpus=16)) == 3, "only the big one holds any"


def test_one_process_fits_where_it_takes_the_whole_node() -> None:
    assert per_pod([node("a", "8")], Resources(cpus=8)) == 1


def test_only_nodes_that_pods_may_go_to_count() -> None:
    taint = {"key": "only", "value": "us", "effect": "NoSchedule"}
    nodes = [
        node("tainted", "2", taints=[taint]),
        node("down", "2", ready="Unknown"),
        node("closed", "2", unschedulable=True),
        node("other", "2", labels={"pool": "b"}),
        node("open", "10", labels={"pool": "a"}),
    ]
    assert per_pod(nodes, Resources(), node_selector={"pool": "a"}) == 9
    assert per_pod(nodes, Resources(), tolerations=["only=us:NoSchedule"]) == 1
    assert per_pod([node("tainted", "2", taints=[taint | {"effect": "PreferNoSchedule"}])], Resources()) == 1


def test_nodes_kept_for_gpus_are_ours_too() -> None:
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    assert per_pod([node("gpu", "96", gpus=8, taints=[taint])], Resources(cpus=4, gpus=1)) == 8


def test_a_process_that_fits_nowhere_is_refused_with_what_the_largest_node_has() -> None:
    with pytest.raises(EngineError, match=r"asks for 4 CPUs, 2 GPUs.*largest, gpu, has 16 CPUs, 1 GPUs"):
        per_pod([node("cpu", "64"), node("gpu", "16", gpus=1)], Resources(cpus=4, gpus=2))
    with pytest.raises(EngineError, match=r"no ready node that node_selector \{'pool': 'c'\}"):
        per_pod([node("a")], Resources(), node_selector={"pool": "c"})


def test_an_autoscaler_may_add_the_node_that_a_process_needs() -> None:
    assert per_pod([node("a", "2")], Resources(cpus=4), unschedulable_s=300) == 1
    assert per_pod([], Resources(cpus=4), unschedulable_s=300) == 1


def test_a_launcher_that_may_not_look_at_nodes_makes_small_pods() -> None:
    assert per_pod(None, Resources()) == 1
