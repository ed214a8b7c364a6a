"""Explains refusals of the Kubernetes API to a user, with advice."""

from __future__ import annotations

from ropewalk.engines.kubernetes_api import DISTRUST, ApiError, KubernetesApi
from ropewalk.errors import EngineError

_DENIED = (
    "an admission policy of the cluster, named above, refuses such pods: change what it names (labels, annotations, "
    "image, run_as_non_root, ...; `--dry-run` shows what is sent), or ask the cluster's administrator"
)
_FORBIDDEN = (
    (
        "exceeded quota",
        "end something that runs there, ask for less (cpus, memory, gpus, workers), or have the quota raised; "
        "`kubectl -n {namespace} describe resourcequota` shows it",
    ),
    (
        "usage per container",
        "the namespace has a LimitRange, an upper limit for each pod: ask for less (cpus, memory, per_pod); "
        "`kubectl -n {namespace} describe limitrange` shows it",
    ),
    (
        "must specify",
        "the namespace has a quota that requires every pod to say how much it needs: ask for memory too, as in "
        "memory=4G",
    ),
    (
        "violates podsecurity",
        "the namespace requires a stricter pod: set the options run_as_non_root=true and run_as_user=NUMBER, "
        "and leave out host volumes and capabilities",
    ),
    (
        "looking up service account",
        "create that service account, or set the option service_account to one that is there",
    ),
    ("being terminated", "the namespace is being deleted: choose another one with the option namespace"),
    ("no priorityclass", "set the option priority_class to one of `kubectl get priorityclasses`"),
    (
        '" in api group "',
        "these rights are missing: apply deploy/kubernetes/rbac.yaml in the namespace or ask its administrator; "
        "`kubectl -n {namespace} auth can-i --list` shows yours",
    ),
)
"""Refusals are distinguished by the server's own messages, which have been stable for years; the first match wins."""


def explain(error: ApiError, doing: str, api: KubernetesApi) -> EngineError:
    """Convert a refusal to an `EngineError` with the action, the server's message, and advice.

    Args:
        error: the refusal.
        doing: the action, such as "create pod x".
        api: the connection to the cluster.

    Returns:
        The error to raise.
    """
    where = f"{api.server}, namespace {api.namespace}"
    return EngineError(f"Kubernetes did not {doing} ({where}): {error}; {_next_step(error, api)}")


def _next_step(error: ApiError, api: KubernetesApi) -> str:
    said = str(error).lower()
    if error.reason == DISTRUST:
        return (
            "the certificate of the API server is not one that the kubeconfig trusts: check its certificate-authority, "
            "and whether somebody stands in between"
        )
    if error.status == 0:
        return (
            "the API server cannot be reached: check the server of the kubeconfig, the network and a proxy; "
            "`kubectl version` asks it the same way"
        )
    if error.status == 401:
        return (
            "the credentials are wrong or have expired: log in to the cluster again or renew the token; "
            "`kubectl get pods` fails the same way until then"
        )
    if "denied the request" in said or "denied request" in said:  # a webhook, or a ValidatingAdmissionPolicy
        return _DENIED
    if error.status == 403:
        steps = [step for words, step in _FORBIDDEN if words in said]
        return (steps or ["something in the cluster forbids it: its administrator knows what"])[0].format(
            namespace=api.namespace
        )
    if error.status == 404 and "namespaces" in said:
        return f"create it (`kubectl create namespace {api.namespace}`) or choose another with the option namespace"
    if error.status == 422:
        return "one of the engine's options does not fit: `--dry-run` shows what is sent"
    if error.status == 429:
        return "it is overloaded and was asked several times: try again later"
    if error.status >= 500:
        return "it failed several times: try again later, and tell the cluster's administrator if this continues"
    return "`--dry-run` shows what is sent"
