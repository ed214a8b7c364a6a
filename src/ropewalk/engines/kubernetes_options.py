"""The options of the engine kubernetes, named as in a pod's manifest, and the short notations of some of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ropewalk.engines.resources import parse_memory
from ropewalk.near_names import check_choice

_LABEL = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_PULL = ("Always", "IfNotPresent", "Never")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NODE_GONE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION = "key, key:Effect, key=value:Effect or key=value:NoExecute:SECONDS"
_VOLUME = "pvc:NAME:/at, host:/PATH:/at, configmap:NAME:/at, secret:NAME:/at or empty:SIZE:/at, each with :ro or not"


@dataclass(frozen=True)
class KubernetesOptions:
    """Where pods run, and their settings besides the requests of a job."""

    image: str = ""
    """The image of the agents: it has /bin/sh and a Python with this version of ropewalk. Needed."""
    python: str = "python3"
    """The Python interpreter in the image."""
    namespace: str = ""
    """The namespace of the pods; that of the kubeconfig's context or of this pod if empty."""
    kubeconfig: str = ""
    """A file; if empty, the variable KUBECONFIG, ~/.kube/config, or the service account of this pod."""
    context: str = ""
    """A context of the kubeconfig; its current one if empty."""
    service_account: str = ""
    """The service account of the pods; the namespace's default account if empty."""
    automount_service_account_token: bool = False
    """Whether pods get a token for the API: only pods that start jobs themselves need one."""
    image_pull_policy: str = ""
    """Always, IfNotPresent or Never; the cluster's default if empty."""
    image_pull_secrets: list[str] = field(default_factory=list[str])
    """Secrets with the credentials of a private registry."""
    node_selector: dict[str, str] = field(default_factory=dict[str, str])
    """Labels that a node must have."""
    tolerations: list[str] = field(default_factory=list[str])
    """Taints that do not keep pods away: key, key:Effect, key=value:Effect or key=value:NoExecute:SECONDS."""
    lost_node_s: int = 5
    """Seconds that the cluster waits for a lost node before it gives up its pods; the cluster's own default is 300."""
    priority_class: str = ""
    """The priority class of the pods."""
    runtime_class: str = ""
    """The runtime class of the pods; some clusters need `nvidia` for GPUs."""
    gpu_resource: str = "nvidia.com/gpu"
    """The cluster's name for a GPU."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """Further labels of the pods."""
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    """Annotations of the pods."""
    volumes: list[str] = field(default_factory=list[str])
    """The mounts: pvc:NAME:/at, host:/PATH:/at, configmap:NAME:/at, secret:NAME:/at, empty:SIZE:/at; + `:ro`."""
    shm_size: str = ""
    """The limit of /dev/shm, such as 2Gi; if empty, only the memory of the pod limits it."""
    run_as_non_root: bool = False
    """Refuse to start as root, as the pod security standard `restricted` asks for."""
    run_as_user: int | None = None
    """The numeric user of the processes; the image's own if None."""
    capabilities: list[str] = field(default_factory=list[str])
    """Linux capabilities that pods keep, such as IPC_LOCK; all others are dropped."""
    grace_s: int = 30
    """Seconds that a pod has to clean up when its node is drained or it is preempted."""
    per_pod: int | None = None
    """The processes of one pod; if None, as many as fit on a node, and 1 if we may not list nodes."""
    unschedulable_s: int | None = None
    """Seconds that a pod may wait that no node can hold, until an autoscaler adds one; if None, 0 if we may list nodes,
    and otherwise 600 for every pod that no node takes."""
    image_pull_s: int = 300
    """Seconds for which an image may fail to be pulled, as from a registry that does not answer; an image that the
    registry does not have ends the wait at once."""
    keep_pods: bool = False
    """Keep pods that have ended, for `kubectl describe` and `kubectl logs`."""
    user: str = ""
    """The user in the label of runs; the name of this account if empty."""

    def __post_init__(self) -> None:
        if self.image_pull_policy:
            check_choice("image_pull_policy", self.image_pull_policy, _PULL)
        if any(character.isspace() for character in self.image):
            raise ValueError(f"image has no spaces in it: {self.image!r}")
        named = [("namespace", self.namespace), ("service_account", self.service_account)]
        named += [("priority_class", self.priority_class), ("runtime_class", self.runtime_class)]
        named += [("image_pull_secrets", name) for name in self.image_pull_secrets]
        for option, name in named:
            if name and not _NAME.fullmatch(name):
                raise ValueError(f"{option} is a name of small letters, digits, - and ., not {name!r}")
        for option, table in (("labels", self.labels), ("node_selector", self.node_selector)):
            for key, value in table.items():
                if not _KEY.fullmatch(key) or not _LABEL.fullmatch(value):
                    raise ValueError(
                        f"{option} has {key}={value!r}, which is not a label: 63 letters, digits, - _ . each"
                    )
        for key in self.annotations:
            if not _KEY.fullmatch(key):
                raise ValueError(
                    f"annotations has the key {key!r}: 63 letters, digits, - _ . after an optional prefix/"
                )
        ours = [key for key in self.labels if key.startswith("ropewalk/") or key == "app.kubernetes.io/managed-by"]
        if ours:
            raise ValueError(f"labels: {ours[0]} is set by ropewalk itself, which finds its pods by it")
        for option, value, least in (
            ("lost_node_s", self.lost_node_s, 0),
            ("grace_s", self.grace_s, 0),
            ("per_pod", self.per_pod, 1),
            ("unschedulable_s", self.unschedulable_s, 0),
            ("image_pull_s", self.image_pull_s, 0),
            ("run_as_user", self.run_as_user, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"{option} is at least {least}, not {value}")
        if self.run_as_non_root and self.run_as_user == 0:
            raise ValueError("run_as_non_root does not go with run_as_user=0, which is root")
        if self.shm_size:
            parse_memory(self.shm_size)
        for text in self.tolerations:
            _toleration(text)
        for number, text in enumerate(self.volumes):
            volume(number, text)

    def all_tolerations(self) -> list[dict[str, Any]]:
        """Return the given tolerations, and short ones for lost nodes unless these are given."""
        asked = [_toleration(text) for text in self.tolerations]
        keys = {toleration.get("key") for toleration in asked}
        return asked + [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": self.lost_node_s}
            for key in _NODE_GONE
            if key not in keys
        ]


def _toleration(text: str) -> dict[str, Any]:
    taint, _, rest = text.partition(":")
    effect, _, seconds = rest.partition(":")
    key, equals, value = taint.partition("=")
    if (
        not _KEY.fullmatch(key)
        or not _LABEL.fullmatch(value)
        or effect not in ("", *_EFFECTS)
        or (seconds and (effect != "NoExecute" or not seconds.isdecimal()))
    ):
        raise ValueError(
            f"tolerations are written {_TOLERATION}, with an effect of {', '.join(_EFFECTS)}; not {text!r}"
        )
    toleration: dict[str, Any] = {"key": key, "operator": "Equal", "value": value} if equals else {}
    toleration = toleration or {"key": key, "operator": "Exists"}
    if effect:
        toleration["effect"] = effect
    if seconds:
        toleration["tolerationSeconds"] = int(seconds)
    return toleration


def volume(number: int, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the volume and the mount for a text such as `pvc:data:/data:ro`.

    Raises:
        ValueError: the text describes no volume.
    """
    kind, *rest = text.split(":")
    read_only = len(rest) == 3 and rest[-1] == "ro"
    if (len(rest) != 2 and not read_only) or not rest[1].startswith("/"):
        raise ValueError(f"volumes are written {_VOLUME}; not {text!r}")
    what, at = rest[:2]
    sources: dict[str, dict[str, Any]] = {
        "pvc": {"persistentVolumeClaim": {"claimName": what}},
        "host": {"hostPath": {"path": what}},
        "configmap": {"configMap": {"name": what}},
        "secret": {"secret": {"secretName": what}},
        "empty": {"emptyDir": {"sizeLimit": what} if what else {}},
    }
    if kind not in sources or not (what or kind == "empty"):
        raise ValueError(f"volumes are written {_VOLUME}; not {text!r}")
    if kind == "host" and not what.startswith("/"):
        raise ValueError(f"volumes: the path on the host must begin with /, as in host:/data:/data; not {text!r}")
    name = f"volume-{number}"
    mount: dict[str, Any] = {"name": name, "mountPath": at}
    if read_only:
        mount["readOnly"] = True
    return {"name": name} | sources[kind], mount
