"""Whether a pod that no node takes now can ever run, and when its wait ends.

    Unschedulable ──▶ can a node of the cluster hold it when it is empty? ── yes ──▶ no room now: it waits
                                      │ no, for `unschedulable_s`        ── may not list nodes, for 600 s
                                      ▼                                     ▼
                                 hopeless: what it asks for, what nodes have, what to do

The scheduler's own message does not tell the two apart: "0/3 nodes are available: 3 Insufficient cpu" is said of a busy
cluster and of a pod that is larger than every node.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

from ropewalk.engines.engine import JobState, JobStatus
from ropewalk.engines.kubernetes_api import ApiError, Manifest
from ropewalk.engines.kubernetes_nodes import cpus_of, tolerates
from ropewalk.engines.resources import parse_memory
from ropewalk.quantities import counted, shown_size

_BLIND_S = 600.0
"""The wait, in seconds, if the nodes cannot be listed and the option unschedulable_s is not set."""
_NODES_S = 30.0
"""A list of nodes is used for this long, in seconds."""
_TEMPORARY_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints of nodes that are not ready, cordoned or short of something: they may be taken off again."""
_AUTOSCALED = "if an autoscaler adds nodes, set unschedulable_s to the seconds that it needs"


class RoomJudge:
    """Decides which waits are in vain, from the pods and the nodes of a cluster.

    Args:
        list_nodes: lists the nodes of the cluster.
        unschedulable_s: seconds that a pod may wait that no node can hold; None: 0 if the nodes can be listed, and 600
            otherwise.
        clock: the time in seconds.
    """

    def __init__(
        self,
        list_nodes: Callable[[], list[Manifest]],
        unschedulable_s: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list_nodes = list_nodes
        self._unschedulable_s = unschedulable_s
        self._clock = clock
        self._since: dict[str, float] = {}
        self._nodes: list[Manifest] | None = None
        self._may_list = True
        self._listed = -math.inf

    def judge(self, id: str, pod: Manifest, status: JobStatus) -> JobStatus:
        """Return the status of a job with the prospects of its pod, if no node takes it now."""
        if status.state is not JobState.PENDING or not is_unschedulable(pod):
            self._since.pop(id, None)
            return status
        now = self._clock()
        waited_s = now - self._since.setdefault(id, now)
        self._look(now)
        if not self._may_list:
            return self._blind(pod, status, waited_s)
        if self._nodes is None:  # the server does not answer now
            return status
        never = why_never(pod, self._nodes)
        if not never:
            words = "there is no room now, but a node that can hold it: it starts when something there has ended"
            return dataclasses.replace(status, reason=f"{_scheduler(pod)}; {words}")
        is_over = waited_s >= (self._unschedulable_s or 0)
        words = never if is_over else f"{never}; it waits {self._unschedulable_s} s for another node (unschedulable_s)"
        return dataclasses.replace(status, reason=f"{_scheduler(pod)}; {words}", hopeless=is_over)

    def _blind(self, pod: Manifest, status: JobStatus, waited_s: float) -> JobStatus:
        most_s = _BLIND_S if self._unschedulable_s is None else self._unschedulable_s
        words = (
            f"it asks for {asked(pod)}; a pod that no node takes for {most_s:g} s is given up (the option "
            "unschedulable_s), because we may not list nodes, which would tell whether any can hold it "
            "(deploy/kubernetes/nodes.yaml)"
        )
        return dataclasses.replace(status, reason=f"{status.reason}; {words}", hopeless=waited_s >= most_s)

    def _look(self, now: float) -> None:
        if now - self._listed < _NODES_S:
            return
        self._listed = now
        try:
            self._nodes, self._may_list = self._list_nodes(), True
        except ApiError as error:
            self._nodes, self._may_list = None, error.status != 403


def is_unschedulable(pod: Manifest) -> bool:
    """Return whether the scheduler has said that no node takes a pod now."""
    return bool(_scheduled(pod)) and not pod["spec"].get("nodeName")


def why_never(pod: Manifest, nodes: Sequence[Manifest]) -> str:
    """Return why no node can hold a pod, even if nothing else ran there; empty if one can.

    Nodes that are not ready or are cordoned count: they may come back.

    Args:
        pod: the pod, as the API returns it: admission may have changed what we sent.
        nodes: all nodes of the cluster.
    """
    small: list[Manifest] = []
    closed = [0, 0]
    for node in nodes:
        if not _has_labels(pod["spec"], node):
            closed[0] += 1
        elif not _is_tolerated(pod["spec"], node):
            closed[1] += 1
        elif any(amount > _has(node, name) for name, amount in _requests(pod["spec"]).items()):
            small.append(node)
        else:
            return ""
    found: list[str] = []
    if small:
        most = max(small, key=lambda node: sum(_has(node, name) >= n for name, n in _requests(pod["spec"]).items()))
        has = _shown({name: _has(most, name) for name in _requests(pod["spec"])})
        found.append(f"{counted(len(small), 'node')} cannot hold that (node {most['metadata']['name']} has {has})")
    if closed[0]:
        found.append(f"{counted(closed[0], 'node')} without the labels {_table(pod['spec'], 'nodeSelector')}")
    if closed[1]:
        found.append(f"{counted(closed[1], 'node')} with a taint that is not tolerated")
    advice = ["ask for less (cpus, memory, gpus, per_pod)"] if small else []
    advice += ["change node_selector or tolerations (`kubectl get nodes --show-labels`)"] if any(closed) else []
    return (
        f"no node of the cluster can ever hold it: it asks for {asked(pod)}; {', '.join(found) or 'there are no nodes'}"
        f"; {'; or '.join([*advice, _AUTOSCALED])}"
    )


def asked(pod: Manifest) -> str:
    """Return what a pod asks for, for a user."""
    return _shown(_requests(pod["spec"])) or "nothing"


def _requests(spec: Manifest) -> dict[str, float]:
    # Init containers run before the others and would need the larger of both: a pod is then only judged more mildly.
    containers: list[Manifest] = spec["containers"]
    tables = [_table(_table(each, "resources"), "requests") for each in containers] + [_table(spec, "overhead")]
    total: dict[str, float] = {}
    for table in tables:
        for name, quantity in table.items():
            total[name] = total.get(name, 0) + _amount(name, str(quantity), unknown=0)
    return total


def _has(node: Manifest, name: str) -> float:
    return _amount(name, str(_table(node["status"], "allocatable").get(name, "0")), unknown=math.inf)


def _amount(name: str, quantity: str, unknown: float) -> float:
    if not quantity.strip("0"):
        return 0.0
    try:
        return cpus_of(quantity) if name == "cpu" else parse_memory(quantity)
    except ValueError:
        return unknown


def _shown(amounts: dict[str, float]) -> str:
    words = {"cpu": "CPUs"}
    return ", ".join(
        shown_size(int(amount)) if name in ("memory", "ephemeral-storage") else f"{amount:g} {words.get(name, name)}"
        for name, amount in amounts.items()
    )


def _has_labels(spec: Manifest, node: Manifest) -> bool:
    labels = _table(node["metadata"], "labels")
    return all(labels.get(key) == value for key, value in _table(spec, "nodeSelector").items())


def _is_tolerated(spec: Manifest, node: Manifest) -> bool:
    taints: list[Manifest] = _table(node, "spec").get("taints") or []
    tolerations: list[Manifest] = spec.get("tolerations") or []
    return all(
        taint["effect"] == "PreferNoSchedule"
        or taint["key"].startswith(_TEMPORARY_TAINTS)
        or any(tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def _table(of: Manifest, name: str) -> Manifest:
    return of.get(name) or {}


def _scheduled(pod: Manifest) -> Manifest:
    conditions: list[Manifest] = _table(pod, "status").get("conditions") or []
    refused = (each for each in conditions if each["type"] == "PodScheduled" and each.get("status") == "False")
    return next((each for each in refused if each.get("reason") == "Unschedulable"), Manifest())


def _scheduler(pod: Manifest) -> str:
    return f"Unschedulable: {str(_scheduled(pod).get('message') or 'no node takes it').strip().rstrip('.')}"
