"""Which pods wait for room, and which wait in vain."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.engines.engine import JobStatus
from ropewalk.engines.kubernetes_api import ApiError
from ropewalk.engines.kubernetes_room import RoomJudge, why_never
from ropewalk.engines.kubernetes_states import status
from tests.engines.test_kubernetes_nodes import node

SAID = "0/2 nodes are available: 2 Insufficient cpu."


def pod(message: str = SAID, requests: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    containers = [{"name": "agent", "resources": {"requests": requests or {"cpu": "1000m"}}}]
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": containers, **spec},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


class Cluster:
    """Its nodes, or its refusal to list them; and a clock."""

    def __init__(self, *nodes: dict[str, Any], refusal: ApiError | None = None) -> None:
        self.nodes = list(nodes)
        self.refusal = refusal
        self.num_lists = 0
        self.now_s = 0.0

    def list_nodes(self) -> list[dict[str, Any]]:
        self.num_lists += 1
        if self.refusal:
            raise self.refusal
        return self.nodes

    def judge(self, unschedulable_s: int | None = None) -> RoomJudge:
        return RoomJudge(self.list_nodes, unschedulable_s, lambda: self.now_s)


def told(judge: RoomJudge, pod: dict[str, Any]) -> JobStatus:
    return judge.judge("p", pod, status(pod))


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ({"cpu": "9"}, "asks for 9 CPUs; 2 nodes cannot hold that (node small has 4 CPUs)"),
        ({"cpu": "1", "memory": str(33 << 30)}, "asks for 1 CPUs, 33.0 GiB; 2 nodes cannot hold that (node"),
        ({"cpu": "1", "nvidia.com/gpu": "4"}, "1 CPUs, 4 nvidia.com/gpu; 2 nodes cannot hold that"),
        ({"cpu": "1", "amd.com/gpu": "1"}, "has 4 CPUs, 0 amd.com/gpu"),
    ],
)
def test_a_pod_that_is_larger_than_every_node_never_runs(requests: dict[str, str], words: str) -> None:
    never = why_never(pod(requests=requests), [node("small", "4"), node("large", "8", gpus=2)])
    assert words in never and "ask for less" in never and "unschedulable_s" in never
    assert "node_selector" not in never


def test_all_containers_and_the_overhead_of_a_pod_count() -> None:
    large = pod(requests={"cpu": "5"}, overhead={"cpu": "250m"})
    assert not why_never(large, [node("a", "6")])
    large["spec"]["containers"].append({"name": "proxy", "resources": {"requests": {"cpu": "1"}}})
    assert "asks for 6.25 CPUs" in why_never(large, [node("a", "6")])


def test_a_pod_that_may_go_to_no_node_never_runs() -> None:
    taint = {"key": "only", "value": "us", "effect": "NoSchedule"}
    nodes = [node("a"), node("b", labels={"disk": "ssd"}, taints=[taint])]
    never = why_never(pod(nodeSelector={"disk": "ssd"}), nodes)
    assert "1 node without the labels {'disk': 'ssd'}, 1 node with a taint that is not tolerated" in never
    assert "change node_selector or tolerations" in never and "ask for less" not in never
    tolerant = pod(nodeSelector={"disk": "ssd"}, tolerations=[{"operator": "Exists"}])
    assert not why_never(tolerant, nodes)
    assert "there are no nodes" in why_never(pod(), [])


@pytest.mark.parametrize(
    "away",
    [
        {"ready": "Unknown", "taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]},
        {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
    ],
)
def test_a_node_that_may_come_back_is_waited_for(away: dict[str, Any]) -> None:
    assert not why_never(pod(requests={"cpu": "6"}), [node("a", "4"), node("b", "8", **away)])


def test_an_amount_that_we_cannot_read_is_no_reason_to_give_up() -> None:
    assert not why_never(pod(requests={"example.com/x": "1"}), [node("a") | {"status": {"allocatable": {
        "cpu": "8", "example.com/x": "1e3"}}}])  # fmt: skip


def test_a_pod_that_waits_for_others_to_end_is_told_so_and_never_given_up() -> None:
    cluster = Cluster(node("a", "8"))
    judge = cluster.judge()
    for cluster.now_s in (0.0, 1e6):
        waits = told(judge, pod())
        assert not waits.hopeless
        assert "2 Insufficient cpu; there is no room now" in waits.reason


def test_a_pod_that_no_node_can_hold_is_given_up_at_once_or_after_the_time_of_an_autoscaler() -> None:
    cluster = Cluster(node("a", "0.5"))
    gone = told(cluster.judge(), pod())
    assert gone.hopeless and "no node of the cluster can ever hold it: it asks for 1 CPUs" in gone.reason
    judge = cluster.judge(unschedulable_s=90)
    waits = told(judge, pod())
    assert not waits.hopeless and "waits 90 s for another node (unschedulable_s)" in waits.reason
    cluster.now_s = 89.0
    assert not told(judge, pod()).hopeless
    cluster.now_s = 90.0
    assert told(judge, pod()).hopeless
    cluster.nodes.append(node("b", "2"))
    cluster.now_s = 120.0
    assert not told(judge, pod()).hopeless, "the autoscaler has added one"


def test_who_may_not_list_nodes_is_told_how_long_the_pod_waits() -> None:
    cluster = Cluster(refusal=ApiError("no", status=403))
    judge = cluster.judge()
    waits = told(judge, pod())
    assert not waits.hopeless
    assert "2 Insufficient cpu" in waits.reason and "for 600 s is given up" in waits.reason
    assert "deploy/kubernetes/nodes.yaml" in waits.reason and "unschedulable_s" in waits.reason
    cluster.now_s = 599.0
    assert not told(judge, pod()).hopeless
    cluster.now_s = 600.0
    assert told(judge, pod()).hopeless


def test_time_in_which_a_pod_was_on_a_node_does_not_count() -> None:
    cluster = Cluster(refusal=ApiError("no", status=403))
    judge = cluster.judge(unschedulable_s=10)
    told(judge, pod())
    placed = pod(nodeName="a")
    placed["status"]["conditions"] = []
    cluster.now_s = 9.0
    assert "given up" not in told(judge, placed).reason
    cluster.now_s = 12.0
    assert not told(judge, pod()).hopeless


def test_a_server_that_does_not_list_nodes_now_decides_nothing() -> None:
    cluster = Cluster(refusal=ApiError("on fire", status=500))
    judge = cluster.judge()
    told(judge, pod())
    cluster.now_s = 1e4
    assert told(judge, pod()) == status(pod())


def test_nodes_are_listed_once_for_many_pods() -> None:
    cluster = Cluster(node("a", "8"))
    judge = cluster.judge()
    for number in range(50):
        judge.judge(str(number), pod(), status(pod()))
    assert cluster.num_lists == 1
