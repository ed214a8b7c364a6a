"""The objects that are sent to Kubernetes: a bare pod for each job, and a Secret for the job's standard input.

    JobSpec, options ──> pod     labels: ropewalk/run, ropewalk/request ...   command: sh -c '... "$@" < FILE' FILE ...
                          ▲ owns                                                                                │
                         Secret  data.stdin ──────── mounted as a file in the pod, which has its digest ────────┘

Pure functions: the same input gives the same manifest, which `ropewalk run --dry-run` prints and tests compare.
Pods are never restarted by the cluster, because a restart is a new job with a name of its own.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Sequence

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.job_script import NOT_OURS
from ropewalk.engines.kubernetes_api import Manifest
from ropewalk.engines.kubernetes_options import KubernetesOptions, volume
from ropewalk.errors import EngineError

MANAGED_BY = "app.kubernetes.io/managed-by"
RUN, REQUEST, USER = "ropewalk/run", "ropewalk/request", "ropewalk/user"
CONTAINER = "agent"
MOST_SECRET_BYTES = 1 << 20
"""The most bytes that a Secret may hold."""
MOST_STDIN_BYTES = 32 * MOST_SECRET_BYTES
"""The most bytes of a standard input, in as many Secrets as it takes: they lie in the store of the cluster itself."""

_STDIN = "stdin"
_STDIN_FOLDER = "/run/ropewalk"
_ONE_FILE = 'exec 3< "$0"'
# With a pipe, signals would go to the shell. The file in memory is gone before the command runs.
_MANY_FILES = 'umask 077; cat "$0"-* > /dev/shm/in && exec 3< /dev/shm/in && rm /dev/shm/in'
# Whoever may make Secrets, but no pods, could make ours first, and send the pod to a launcher of their own. What is
# checked is what is read: the file is opened once, and another that takes its name later is not looked at.
_CHECK = (
    ' && digest=$(sha256sum < /proc/self/fd/3) && if [ "$digest" != "$1  -" ]; then'
    f' echo "ropewalk: the Secret of this pod is not the one that its launcher has written" >&2; exit {NOT_OURS}; fi'
    ' && shift && exec "$@" < /proc/self/fd/3 3<&-'
)
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,38}[a-z0-9])?")


def label(text: str) -> str:
    """Return the text if it can be a label and part of a name, and otherwise a digest of it."""
    return text if _LABEL.fullmatch(text) else "x" + hashlib.sha256(text.encode()).hexdigest()[:16]


def labels(run_id: str, request_id: str, user: str) -> dict[str, str]:
    """Return the labels by which pods and Secrets are found."""
    return {MANAGED_BY: "ropewalk", RUN: label(run_id), REQUEST: label(request_id), USER: label(user)}


def selector(run_id: str = "", user: str = "") -> str:
    """Return the label selector of all jobs, or of the jobs of a run or a user."""
    wanted = {MANAGED_BY: "ropewalk"}
    if run_id:
        wanted[RUN] = label(run_id)
    if user:
        wanted[USER] = label(user)
    return ",".join(f"{key}={value}" for key, value in wanted.items())


def run_of(pod: Manifest) -> str:
    """Return the run that the labels of a pod name; empty for one that others have labelled like ours without it."""
    return str(pod["metadata"]["labels"].get(RUN, ""))


def job_name(run_id: str, request_id: str, index: int) -> str:
    """Return the name of a pod and of its Secret: the same each time, so that nothing can be created twice."""
    request = hashlib.sha256(request_id.encode()).hexdigest()[:10]
    return f"ropewalk-{label(run_id)}-{request}-{index}"


def pod(
    options: KubernetesOptions,
    spec: JobSpec,
    name: str,
    labels: dict[str, str],
    run_id: str,
    avoided: Sequence[str] = (),
) -> Manifest:
    """Return the pod of a job.

    Args:
        options: the options of the engine.
        spec: the job.
        name: the name of the pod.
        labels: its labels, as returned by `labels`.
        run_id: the run that the job belongs to.
        avoided: nodes to which the pod goes only if no other one takes it.

    Returns:
        The pod, as the API takes it.

    Raises:
        EngineError: the job cannot be a pod.
    """
    if not options.image:
        raise EngineError(
            "the engine kubernetes needs the option image: an image that has Python and ropewalk, "
            "as in --option image=registry.example/ropewalk:1 (the Dockerfile of ropewalk builds one)"
        )
    volumes, mounts = _volumes(options, spec, name)
    body: Manifest = {
        "restartPolicy": "Never",
        "containers": [_container(options, spec, run_id, mounts)],
        "volumes": volumes,
        "terminationGracePeriodSeconds": options.grace_s,
        "automountServiceAccountToken": options.automount_service_account_token,
        # No variables for the Services of the namespace: they mix with the user's own, and are never needed.
        "enableServiceLinks": False,
        # The agent is then not process 1, which ignores signals that it does not handle and must reap every orphan.
        "shareProcessNamespace": True,
        "securityContext": _security(options),
        "tolerations": options.all_tolerations() + _gpu_toleration(options, spec),
    }
    if spec.time_limit_s is not None:
        body["activeDeadlineSeconds"] = max(1, math.ceil(spec.time_limit_s))
    for key, value in (
        ("serviceAccountName", options.service_account),
        ("nodeSelector", options.node_selector),
        ("priorityClassName", options.priority_class),
        ("runtimeClassName", options.runtime_class),
        ("imagePullSecrets", [{"name": each} for each in options.image_pull_secrets]),
    ):
        if value:
            body[key] = value
    if avoided:
        body["affinity"] = _away_from(avoided)
    metadata: Manifest = {"name": name, "labels": {**options.labels, **labels}}
    if options.annotations:
        metadata["annotations"] = options.annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def _container(options: KubernetesOptions, spec: JobSpec, run_id: str, mounts: list[Manifest]) -> Manifest:
    """Return the only container of a pod, in which the agent and its processes run."""
    container: Manifest = {
        "name": CONTAINER,
        "image": options.image,
        "command": [literal(word) for word in _command(spec)],
        "env": [
            {"name": key, "value": literal(value)}
            for key, value in sorted({**spec.environment, "ROPEWALK_RUN_ID": run_id}.items())
        ],
        "resources": _resources(options, spec),
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]} | ({"add": options.capabilities} if options.capabilities else {}),
        },
    }
    if options.image_pull_policy:
        container["imagePullPolicy"] = options.image_pull_policy
    return container


def secrets(name: str, labels: dict[str, str], stdin: bytes, owner_uid: str) -> list[Manifest]:
    """Return the Secrets with a job's standard input; the cluster deletes them with the pod that owns them.

    They are as many as `secret_names` says, and none if there is no input.
    """
    names = secret_names(name, len(stdin))
    parts = (stdin[start : start + MOST_SECRET_BYTES] for start in range(0, len(stdin), MOST_SECRET_BYTES))
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {
                "name": each,
                "labels": labels,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": owner_uid}],
            },
            "immutable": True,
            "data": {_STDIN: base64.b64encode(part).decode("ascii")},
        }
        for each, part in zip(names, parts, strict=True)
    ]


def secret_names(name: str, stdin_bytes: int) -> list[str]:
    """Return the names of the Secrets that hold a job's standard input of this size, in order."""
    count = math.ceil(stdin_bytes / MOST_SECRET_BYTES)
    return [name] if count == 1 else [f"{name}-{number:02}" for number in range(count)]


def literal(text: str) -> str:
    """Escape the patterns that Kubernetes replaces in a command or a variable: `$(NAME)`, and `$$`."""
    return text.replace("$", "$$")


def _command(spec: JobSpec) -> list[str]:
    if not spec.stdin:
        return list(spec.command)
    # $0 is the file. The shell becomes the command, so that signals and the exit code are the command's own.
    script = (_ONE_FILE if len(spec.stdin) <= MOST_SECRET_BYTES else _MANY_FILES) + _CHECK
    return ["/bin/sh", "-c", script, f"{_STDIN_FOLDER}/{_STDIN}", hashlib.sha256(spec.stdin).hexdigest(), *spec.command]


def _resources(options: KubernetesOptions, spec: JobSpec) -> Manifest:
    # No limit of CPUs: it would throttle processes although CPUs are idle, and in the middle of a step.
    requests = {"cpu": f"{max(1, round(spec.resources.cpus * 1000))}m"}
    limits: dict[str, str] = {}
    if spec.resources.memory_bytes is not None:
        limits["memory"] = str(spec.resources.memory_bytes)
    if spec.resources.gpus:
        limits[options.gpu_resource] = str(spec.resources.gpus)
    return {"requests": requests | limits} | ({"limits": limits} if limits else {})


def _gpu_toleration(options: KubernetesOptions, spec: JobSpec) -> list[Manifest]:
    """Return a toleration for nodes with GPUs, which are often tainted with the name of the resource."""
    return [{"key": options.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}] if spec.resources.gpus else []


def _away_from(nodes: Sequence[str]) -> Manifest:
    """Return the affinity of a pod that avoids nodes which may be lost.

    It is preferred, not required. The cluster itself keeps pods off a lost node after about 40 s, so the preference
    counts until then. A required affinity would hold for ever: with all other nodes full, the pod would wait although
    the node is back; and it needs a fallback for clusters of one node, which the scheduler has for a preference.
    """
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": sorted(nodes)}
    term = {"weight": 100, "preference": {"matchExpressions": [away]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def _security(options: KubernetesOptions) -> Manifest:
    context: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if options.run_as_non_root:
        context["runAsNonRoot"] = True
    if options.run_as_user is not None:
        # Files of Secrets belong to this group.
        context |= {"runAsUser": options.run_as_user, "fsGroup": options.run_as_user}
    return context


def _volumes(options: KubernetesOptions, spec: JobSpec, name: str) -> tuple[list[Manifest], list[Manifest]]:
    memory: Manifest = {"medium": "Memory"} | ({"sizeLimit": options.shm_size} if options.shm_size else {})
    volumes: list[Manifest] = [{"name": "shm", "emptyDir": memory}]
    mounts: list[Manifest] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if spec.stdin:
        # The image's own user is not known here, and all processes of the container run as it.
        mode = 0o444 if options.run_as_user is None else 0o440
        volumes.append({"name": _STDIN} | _stdin_source(secret_names(name, len(spec.stdin)), mode))
        mounts.append({"name": _STDIN, "mountPath": _STDIN_FOLDER, "readOnly": True})
    for number, text in enumerate(options.volumes):
        source, mount = volume(number, text)
        volumes.append(source)
        mounts.append(mount)
    return volumes, mounts


def _stdin_source(names: list[str], mode: int) -> Manifest:
    """Return the files of a standard input: `stdin`, or `stdin-00`, `stdin-01`, ... if it takes several Secrets."""
    if len(names) == 1:
        return {"secret": {"secretName": names[0], "defaultMode": mode}}
    files = [{"key": _STDIN, "path": f"{_STDIN}-{number:02}"} for number in range(len(names))]
    sources = [{"secret": {"name": name, "items": [file]}} for name, file in zip(names, files, strict=True)]
    return {"projected": {"defaultMode": mode, "sources": sources}}
