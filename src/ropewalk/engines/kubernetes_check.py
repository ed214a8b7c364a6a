"""Checks whether a Kubernetes cluster can be used, for `ropewalk doctor --engine kubernetes`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ropewalk.engines import kubernetes_manifests as manifests
from ropewalk.engines.engine import EngineFinding, JobSpec
from ropewalk.engines.kubernetes_api import NICE_RIGHTS, RIGHTS, ApiError, KubernetesApi, retrying
from ropewalk.engines.kubernetes_errors import explain
from ropewalk.engines.kubernetes_nodes import nodes_for
from ropewalk.engines.kubernetes_options import KubernetesOptions
from ropewalk.errors import EngineError

_MOST_SKEW_S = 60.0
"""Certificates of a run are valid from a short time before its start."""
_PATIENCE_S = 3.0


def findings(api: KubernetesApi, options: KubernetesOptions) -> list[EngineFinding]:
    """Check everything that can be checked without starting a pod; nothing is left in the cluster."""
    found: list[EngineFinding] = []
    for check in (_server, _rights, _pods_are_accepted, _nodes):
        try:
            for finding in check(api, options):
                found.append(finding)  # findings before an error are kept
        except ApiError as error:
            found.append(EngineFinding("Kubernetes API", False, str(explain(error, "answer", api))))
            break
    return found


def _server(api: KubernetesApi, options: KubernetesOptions) -> Iterator[EngineFinding]:
    facts = retrying(api.facts, _PATIENCE_S)
    yield EngineFinding("Kubernetes API", True, f"{api.server}, version {facts.version}, namespace {api.namespace}")
    if facts.clock_s is not None:
        skew_s = time.time() - facts.clock_s
        ok = abs(skew_s) < _MOST_SKEW_S
        detail = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the cluster's"
        yield EngineFinding(
            "clock", ok, detail if ok else f"{detail}: certificates fail; set this machine's clock (NTP)"
        )


def _rights(api: KubernetesApi, options: KubernetesOptions) -> Iterator[EngineFinding]:
    missing = [f"{verb} {resource}" for verb, resource in RIGHTS if not _may(api, verb, resource)]
    yield EngineFinding(
        f"rights in namespace {api.namespace}",
        not missing,
        f"missing: {', '.join(missing)}; apply deploy/kubernetes/rbac.yaml or ask its administrator"
        if missing
        else "pods, their logs and Secrets",
    )


def _pods_are_accepted(api: KubernetesApi, options: KubernetesOptions) -> Iterator[EngineFinding]:
    """Send a pod as a dry run: it passes every admission check of the cluster, and is not created."""
    what = "a pod like those of agents is accepted"
    spec = JobSpec(command=[options.python, "--version"])
    name = manifests.job_name("check", "check", 0)
    try:
        manifest = manifests.pod(options, spec, name, manifests.labels("check", "check", options.user), "check")
        retrying(lambda: api.create_pod(manifest, dry_run=True), _PATIENCE_S)
    except ApiError as error:
        yield EngineFinding(what, False, str(explain(error, "accept it", api)))
    except EngineError as error:
        yield EngineFinding(what, False, str(error))
    else:
        yield EngineFinding(
            what, True, f"image {options.image}; whether the nodes can pull it shows when the first one starts"
        )


def _nodes(api: KubernetesApi, options: KubernetesOptions) -> Iterator[EngineFinding]:
    if not all(_may(api, verb, resource) for verb, resource in NICE_RIGHTS):
        size = f"{options.per_pod} processes" if options.per_pod else "1 process; the option per_pod changes it"
        yield EngineFinding("nodes", True, f"we may not list them, so a pod hosts {size}")
        return
    nodes = nodes_for(options, retrying(api.list_nodes, _PATIENCE_S))
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    detail = f"{len(nodes)} ready for our pods, with {cpus:g} CPUs and {gpus} {options.gpu_resource} together"
    yield EngineFinding("nodes", bool(nodes), detail if nodes else f"{detail}: check node_selector and tolerations")


def _may(api: KubernetesApi, verb: str, resource: str) -> bool:
    ask: Callable[[], bool] = lambda: api.may(verb, resource)  # noqa: E731 - typed
    return retrying(ask, _PATIENCE_S)
