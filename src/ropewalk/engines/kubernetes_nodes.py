"""The nodes of a cluster, and how many processes a pod that fits on them can host."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.engines.kubernetes_api import Manifest
from ropewalk.engines.kubernetes_options import KubernetesOptions
from ropewalk.engines.resources import Resources, parse_memory
from ropewalk.errors import EngineError
from ropewalk.quantities import shown_size

_FREE = 0.9
"""The part of a node that we count on: the requests of the cluster's own pods (network, logs, metrics) are not visible.
"""
_QUANTITY = re.compile(r"([0-9.]+)(m?)")


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """The capacity of a node for pods."""

    name: str
    cpus: float
    memory_bytes: int
    gpus: int
    addresses: tuple[str, ...]


def nodes_for(options: KubernetesOptions, nodes: Sequence[Manifest]) -> list[KubernetesNode]:
    """Return the ready nodes that the options allow."""
    return [_node(options, node) for node in nodes if _is_ready(node) and _is_open(options, node)]


def processes_per_pod(nodes: Sequence[KubernetesNode] | None, process: Resources, options: KubernetesOptions) -> int:
    """Return how many processes a pod may host so that it fits on the smallest node that can host any.

    Raises:
        EngineError: no node can hold even one process, and the option unschedulable_s does not say to wait for one.
    """
    if nodes is None:
        return 1
    fits = [_fit(node, process, 1.0) for node in nodes]
    if not any(fits):
        if options.unschedulable_s is not None:
            return 1  # an autoscaler may add a node
        asked = f"{process.cpus:g} CPUs, {process.gpus} GPUs" + (
            f" and {shown_size(process.memory_bytes)}" if process.memory_bytes else ""
        )
        if not nodes:
            raise EngineError(
                "the cluster has no ready node that node_selector "
                f"{options.node_selector} and tolerations {options.tolerations} let pods go to; "
                "`kubectl get nodes --show-labels` shows them"
            )
        largest = max(nodes, key=lambda node: (node.gpus > 0 if process.gpus else True, node.cpus, node.memory_bytes))
        raise EngineError(
            f"no node of the cluster holds a process that asks for {asked}; the largest, {largest.name}, has "
            f"{largest.cpus:g} CPUs, {largest.gpus} GPUs ({options.gpu_resource}) and "
            f"{shown_size(largest.memory_bytes)}; ask for less"
        )
    return min(max(1, _fit(node, process, _FREE)) for node, fit in zip(nodes, fits, strict=True) if fit)


def _fit(node: KubernetesNode, process: Resources, free: float) -> int:
    fits = [node.cpus * free / process.cpus]
    if process.memory_bytes:
        fits.append(node.memory_bytes * free / process.memory_bytes)
    if process.gpus:
        fits.append(node.gpus / process.gpus)
    return math.floor(min(fits))


def _node(options: KubernetesOptions, node: Manifest) -> KubernetesNode:
    has: Manifest = node["status"].get("allocatable") or {}
    addresses: list[dict[str, str]] = node["status"].get("addresses") or []
    return KubernetesNode(
        node["metadata"]["name"],
        _cpus(str(has.get("cpu", "0"))),
        _bytes(str(has.get("memory", "0"))),
        int(has.get(options.gpu_resource, 0)),
        tuple(each["address"] for each in addresses if each["type"] == "InternalIP"),
    )


def _is_ready(node: Manifest) -> bool:
    conditions: list[Manifest] = node["status"].get("conditions") or []
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not node["spec"].get("unschedulable")


def _is_open(options: KubernetesOptions, node: Manifest) -> bool:
    labels: dict[str, str] = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in options.node_selector.items()):
        return False
    taints: list[Manifest] = node["spec"].get("taints") or []
    tolerations = options.all_tolerations()
    return all(
        taint["effect"] == "PreferNoSchedule"
        or taint["key"] == options.gpu_resource
        or any(tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def tolerates(toleration: Manifest, taint: Manifest) -> bool:
    """Return whether a toleration of a pod, with Kubernetes' own defaults, is for a taint of a node."""
    exists = toleration.get("operator") == "Exists"
    return (
        (toleration.get("key") == taint["key"] or (exists and not toleration.get("key")))
        and toleration.get("effect") in (None, "", taint["effect"])
        and (exists or (toleration.get("value") or "") == (taint.get("value") or ""))
    )


def cpus_of(quantity: str) -> float:
    """Return a quantity of CPUs, such as `500m`, as a number.

    Raises:
        ValueError: it is none.
    """
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"a quantity of CPUs is written 2, 0.5 or 500m, not {quantity!r}")
    return float(match[1]) / (1000 if match[2] else 1)


def _cpus(quantity: str) -> float:
    try:
        return cpus_of(quantity)
    except ValueError:
        return 0.0


def _bytes(quantity: str) -> int:
    try:
        return parse_memory(quantity)
    except ValueError:
        return 0
