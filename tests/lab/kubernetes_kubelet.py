"""Nodes of the fake cluster: each pod is a real process in a machine of the lab of its own.

Pending ── scheduler: is there room, do taints and labels fit ──▶ node ── image, Secrets ──▶ Running ──▶ Succeeded
    ▲ Unschedulable, said in the pod's conditions                    └ ErrImagePull                  └─▶ Failed
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.lab.kubernetes_store import OVER, Object, Refused, Store, now, quantity, requests
from tests.lab.lab import Lab
from tests.lab.machine import Machine

_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")
_ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
_DEFAULT_NODE = {"cpu": "100", "memory": "100Gi", "nvidia.com/gpu": "0"}


@dataclass
class Kubelet:
    """All nodes, and a thread for each pod."""

    lab: Lab
    store: Store
    folder: Path
    """For logs."""
    images: set[str]
    nodes: dict[str, dict[str, str]]
    """Allocatable resources by name."""
    account_files: Callable[[str], dict[str, str]]
    """The token and what else is mounted into a pod that wants it, by the service account's name."""
    account_environment: dict[str, str] = field(default_factory=dict)
    pull_s: float = 0.0
    machines: dict[str, Machine] = field(default_factory=dict)
    """Those of living pods, by `namespace/name`."""
    lost: set[str] = field(default_factory=set)
    """Nodes of which nothing is heard any more."""

    def __post_init__(self) -> None:
        self._stopping = False
        self._boot = threading.Lock()  # a lab makes one machine at a time
        self._num_machines = 0
        self._threads: list[threading.Thread] = []
        self._oom: set[str] = set()
        for name, has in self.nodes.items():
            self._register(name, _DEFAULT_NODE | has)
        self._scheduler = threading.Thread(target=self._schedule, name="fake-scheduler")
        self._scheduler.start()

    def close(self) -> None:
        with self._boot:  # no machine is made from now on
            self._stopping = True
        for machine in list(self.machines.values()):
            self._plug(machine)
        with self.store.changed:
            self.store.changed.notify_all()
        for thread in [self._scheduler, *self._threads]:
            thread.join()

    def log(self, namespace: str, name: str) -> bytes:
        pod = self.store.get("pods", namespace, name)
        states = pod["status"].get("containerStatuses", [{"state": {}}])[0]["state"]
        if not states or "waiting" in states:
            reason = states.get("waiting", {}).get("reason", "ContainerCreating")
            raise Refused(400, "BadRequest", f'container "agent" in pod "{name}" is waiting to start: {reason}')
        return self._log_file(pod).read_bytes()

    def lose_node(self, node: str, cut: bool = False, noticed_after_s: float = 0.5) -> None:
        """Pull the plug of a node, or its cable; the cluster notices, and deletes its pods after a while."""
        self.lost.add(node)
        pods = [pod for pod in self._pods() if pod["spec"].get("nodeName") == node]
        for pod in pods:
            machine = self.machines.get(_key(pod))
            if machine is not None and cut:
                self.lab.cut(machine, idle=True)
            elif machine is not None:
                self._plug(machine)
        self._spawn(lambda: self._notice(node, pods, noticed_after_s), f"fake-node-controller-{node}")

    def evict(self, namespace: str, name: str, message: str) -> None:
        """End a pod because its node runs out of something."""
        pod = self.store.get("pods", namespace, name)

        def evicted(changed: Object) -> None:
            changed["status"] |= {"phase": "Failed", "reason": "Evicted", "message": message}
            changed["status"]["conditions"] = [
                {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message}
            ]

        self.store.update("pods", namespace, name, evicted)
        self._plug(self.machines[_key(pod)])

    # --- the scheduler ------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        while not self._stopping:
            with self.store.changed:
                waiting = [pod for pod in self._pods() if not pod["spec"].get("nodeName")]
                for pod in waiting:
                    self._place(pod)
                if not any(
                    "nodeName" not in pod["spec"] and not pod["status"].get("conditions") for pod in self._pods()
                ):
                    self.store.changed.wait(0.5)

    def _place(self, pod: Object) -> None:
        reasons: dict[str, int] = {}
        for name in sorted(self.nodes, key=lambda name: _is_disliked(pod["spec"], name)):
            why = self._why_not(pod["spec"], name)
            if not why:
                self._update(pod, lambda changed, name=name: _placed(changed, name))
                placed = self.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
                self._spawn(lambda placed=placed: self._run(placed), f"fake-kubelet-{pod['metadata']['name']}")
                return
            reasons[why] = reasons.get(why, 0) + 1
        words = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"0/{len(self.nodes)} nodes are available: {words}.",
        }
        self._update(pod, lambda changed: changed["status"].update(conditions=[condition]))

    def _why_not(self, spec: Object, name: str) -> str:
        node = self.store.objects["nodes", "", name]
        if name in self.lost and node["status"]["conditions"][0]["status"] != "True":
            return "node(s) had untolerated taint {node.kubernetes.io/unreachable: }"
        labels = node["metadata"]["labels"]
        if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        for taint in node["spec"].get("taints", []):
            if not any(each.get("key") == taint["key"] for each in spec.get("tolerations", [])):
                return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
        here = [
            requests(each["spec"])
            for each in self._pods()
            if each["spec"].get("nodeName") == name and each["status"]["phase"] not in OVER
        ]
        for resource, asked in requests(spec).items():
            has = quantity(node["status"]["allocatable"].get(resource, "0"))
            if sum(each.get(resource, 0) for each in here) + asked > has:
                return f"Insufficient {resource}"
        return ""

    def _register(self, name: str, has: dict[str, str]) -> None:
        # In the network of the lab, where a launcher looks for the interface that leads to nodes; nobody answers there.
        address = f"10.77.0.{251 + len([key for key in self.store.objects if key[0] == 'nodes'])}"
        taints = [{"key": key[6:], "value": "", "effect": "NoSchedule"} for key in has if key.startswith("taint:")]
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {"taints": taints} if taints else {},
            "status": {
                "allocatable": {key: value for key, value in has.items() if not key.startswith("taint:")},
                "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        with self.store.changed:
            self.store.objects["nodes", "", name] = node

    # --- a pod --------------------------------------------------------------------------------------------------------

    def _run(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        if pod["spec"]["nodeName"] in self.lost:  # nobody there learns of the pod
            return
        if not self._pulled(pod, container):
            return
        files = self._files(pod)
        if files is None:
            return
        with self._boot:
            if self._stopping or not self._exists(pod):
                return
            self._num_machines += 1
            machine = self.lab.machine(f"pod{self._num_machines}", shared=self._shared(pod))
            self.machines[_key(pod)] = machine
        try:
            self._run_in(machine, pod, container, files)
        finally:
            self._plug(machine)
            self.machines.pop(_key(pod), None)
            if pod["spec"]["nodeName"] not in self.lost and self._is_being_deleted(pod):
                with contextlib.suppress(Refused):
                    self.store.remove("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _run_in(self, machine: Machine, pod: Object, container: Object, files: dict[str, bytes]) -> None:
        with contextlib.suppress(RuntimeError):  # the plug was pulled already
            for path, content in files.items():
                inside = machine.path(path)
                inside.parent.mkdir(parents=True, exist_ok=True)
                inside.write_bytes(content)
                inside.chmod(0o444)
        try:
            process = self._start(machine, pod, container)
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            why = {"exitCode": 128, "reason": "StartError", "message": f"failed to create containerd task: {error}"}
            self._end(pod, why)
            return
        except RuntimeError:
            return

        def running(changed: Object) -> None:
            changed["status"] |= {"phase": "Running", "podIP": machine.ip}
            changed["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            _set_state(changed, {"running": {"startedAt": now()}})

        self._update(pod, running)
        why = self._wait(machine, pod, container, process)
        if pod["spec"]["nodeName"] in self.lost:
            return
        code = process.returncode
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if _key(pod) in self._oom else "Completed" if code == 0 else "Error"
        self._end(pod, {"exitCode": code, "reason": reason}, why)

    def _start(self, machine: Machine, pod: Object, container: Object) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/tmp", "HOSTNAME": machine.name}
        environment |= {key: value for key, value in os.environ.items() if key.startswith("TESTS_OF_")}
        if pod["spec"].get("automountServiceAccountToken", True):
            environment |= self.account_environment
        for each in container.get("env", []):
            environment[each["name"]] = expand(each.get("value", ""), environment)
        argv = [expand(word, environment) for word in container["command"]]
        with self._log_file(pod).open("wb") as log:
            return machine.visit(
                lambda: subprocess.Popen(
                    argv, env=environment, cwd="/tmp", stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True, user=_user(pod), group=_user(pod),
                )
            )  # fmt: skip

    def _wait(self, machine: Machine, pod: Object, container: Object, process: subprocess.Popen[bytes]) -> str:
        """Until the process has ended; why the node ended it, if it did."""
        limit = container["resources"].get("limits", {}).get("memory")
        deadline = pod["spec"].get("activeDeadlineSeconds")
        started, told_at, why = time.monotonic(), 0.0, ""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.03)
                return why
            if limit and _memory(process.pid) > quantity(limit):
                self._oom.add(_key(pod))
                process.kill()
            grace_s = self._grace_s(pod)
            if grace_s is None and deadline and time.monotonic() - started > deadline:
                why, grace_s = "DeadlineExceeded", pod["spec"]["terminationGracePeriodSeconds"]
            if grace_s is None or pod["spec"]["nodeName"] in self.lost:
                continue
            if not told_at:
                told_at = time.monotonic()
                process.terminate()
            if time.monotonic() - told_at > grace_s:
                process.kill()

    def _grace_s(self, pod: Object) -> float | None:
        """How long the pod may go on: None if nobody has deleted it."""
        try:
            found = self.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        except Refused:
            return 0.0
        if found["metadata"]["uid"] != pod["metadata"]["uid"]:
            return 0.0
        return found["metadata"].get("deletionGracePeriodSeconds")

    def _end(self, pod: Object, terminated: Object, why: str = "") -> None:
        def ended(changed: Object) -> None:
            if changed["status"]["phase"] in OVER:
                return
            changed["status"]["phase"] = "Succeeded" if terminated["exitCode"] == 0 and not why else "Failed"
            if why:
                changed["status"] |= {
                    "reason": why,
                    "message": "Pod was active on the node longer than the specified deadline",
                }
            disrupted = [each for each in changed["status"].get("conditions", []) if each["type"] == "DisruptionTarget"]
            completed = {"type": "Ready", "status": "False", "reason": "PodCompleted"}
            changed["status"]["conditions"] = [completed, *disrupted]
            _set_state(changed, {"terminated": terminated | {"finishedAt": now()}})

        self._update(pod, ended)

    def _pulled(self, pod: Object, container: Object) -> bool:
        self._update(pod, _taken)
        time.sleep(self.pull_s)
        image = container["image"]
        if pod["spec"].get("securityContext", {}).get("runAsNonRoot") and not _user(pod):
            message = "container has runAsNonRoot and image will run as root"
            reason = "CreateContainerConfigError"
        elif image in self.images:
            return True
        elif container.get("imagePullPolicy") == "Never":
            reason, message = "ErrImageNeverPull", f'Container image "{image}" is not present with pull policy of Never'
        else:
            reason = "ErrImagePull"
            message = f'failed to pull and unpack image "{image}": {image}: not found'
        waiting = {"waiting": {"reason": reason, "message": message}}
        self._update(pod, lambda changed: _set_state(changed, waiting))
        self._until_deleted(pod)
        return False

    def _files(self, pod: Object) -> dict[str, bytes] | None:
        """What is mounted into the pod, once its Secrets are there; None if it was deleted meanwhile."""
        files: dict[str, bytes] = {}
        for mount, name, renamed in _secrets(pod):
            while not self._stopping and self._exists(pod) and not self._is_being_deleted(pod):
                key = "secrets", pod["metadata"]["namespace"], name
                with self.store.changed:
                    found = self.store.objects.get(key)
                    if found is None:
                        self.store.changed.wait(0.5)
                        continue
                for file, value in found["data"].items():
                    files[f"{mount}/{renamed.get(file, file)}"] = base64.b64decode(value)
                break
            else:
                self._until_deleted(pod)
                return None
        if pod["spec"].get("automountServiceAccountToken", True):
            for name, text in self.account_files(pod["spec"]["serviceAccountName"]).items():
                files[f"{_ACCOUNT}/{name}"] = text.encode()
        return files

    def _shared(self, pod: Object) -> list[Path]:
        return [Path(volume["hostPath"]["path"]) for volume in pod["spec"].get("volumes", []) if "hostPath" in volume]

    def _until_deleted(self, pod: Object) -> None:
        """A pod that has not started goes as soon as somebody deletes it."""
        while not self._stopping and self._exists(pod):
            if self._is_being_deleted(pod):
                with contextlib.suppress(Refused):
                    self.store.remove("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
                return
            with self.store.changed:
                self.store.changed.wait(0.2)

    def _notice(self, node: str, pods: list[Object], after_s: float) -> None:
        """As the node controller: not ready, then the pods' tolerations run out."""
        time.sleep(after_s)
        with self.store.changed:
            self.store.objects["nodes", "", node]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
        for pod in pods:
            self._update(
                pod, lambda changed: changed["status"].update(conditions=[{"type": "Ready", "status": "False"}])
            )
        tolerated = [
            each["tolerationSeconds"]
            for pod in pods
            for each in pod["spec"].get("tolerations", [])
            if each.get("key") == "node.kubernetes.io/unreachable"
        ]
        time.sleep(min(tolerated, default=300) * 0.1)  # ten times as fast as a real cluster

        def tainted(changed: Object) -> None:
            changed["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": 30}
            words = "Taint manager: deleting due to NoExecute taint"
            disruption = {"type": "DisruptionTarget", "status": "True", "message": words}
            disruption["reason"] = "DeletionByTaintManager"
            changed["status"]["conditions"] = [{"type": "Ready", "status": "False"}, disruption]

        for pod in pods:
            self._update(pod, tainted)

    # --- means --------------------------------------------------------------------------------------------------------

    def _pods(self) -> list[Object]:
        with self.store.changed:
            return [each for (kind, _, _), each in self.store.objects.items() if kind == "pods"]

    def _exists(self, pod: Object) -> bool:
        with self.store.changed:
            found = self.store.objects.get(("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]))
            return found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]

    def _is_being_deleted(self, pod: Object) -> bool:
        with self.store.changed:
            found = self.store.objects.get(("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]))
            return found is not None and "deletionTimestamp" in found["metadata"]

    def _update(self, pod: Object, change: Callable[[Object], Any]) -> None:
        if self._exists(pod):
            self.store.update("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], change)

    def _spawn(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name)
        self._threads.append(thread)
        thread.start()

    def _plug(self, machine: Machine) -> None:
        with self._boot:
            if not machine.is_plugged:
                self.lab.plug(machine, idle=True)
            # A cluster has many more pods than a lab has machines; what is in them is checked by now, as all are dead.
            machine.close()
            machine.inodes.clear()

    def _log_file(self, pod: Object) -> Path:
        return self.folder / f"{pod['metadata']['uid']}.log"


def expand(text: str, environment: dict[str, str]) -> str:
    """Replace `$(NAME)` and `$$` in a command or variable, as Kubernetes does; unknown names stay as they are."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else environment.get(match[2], match[0])

    return _REFERENCE.sub(replace, text)


def _placed(pod: Object, node: str) -> None:
    pod["spec"]["nodeName"] = node
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]


def _taken(pod: Object) -> None:
    pod["status"]["startTime"] = now()
    _set_state(pod, {"waiting": {"reason": "ContainerCreating"}})


def _is_disliked(spec: Object, node: str) -> bool:
    """Whether the pod prefers other nodes, which the scheduler then takes if they have room."""
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return any(
        (each["key"], each["operator"]) == ("kubernetes.io/hostname", "NotIn") and node in each["values"]
        for term in terms
        for each in term["preference"]["matchExpressions"]
    )


def _set_state(pod: Object, state: Object) -> None:
    container = pod["spec"]["containers"][0]
    pod["status"]["containerStatuses"] = [{"name": container["name"], "image": container["image"], "state": state}]


def _secrets(pod: Object) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Where each Secret of a pod is mounted, its name, and the files that have another name there than in it."""
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["spec"]["containers"][0].get("volumeMounts", [])}
    for volume in pod["spec"].get("volumes", []):
        if "secret" in volume:
            yield mounts[volume["name"]], volume["secret"]["secretName"], {}
        for source in volume.get("projected", {}).get("sources", []):
            renamed = {item["key"]: item["path"] for item in source["secret"].get("items", [])}
            yield mounts[volume["name"]], source["secret"]["name"], renamed


def _user(pod: Object) -> int | None:
    return pod["spec"].get("securityContext", {}).get("runAsUser")


def _memory(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        return sum(process.memory_info().rss for process in [root, *root.children(recursive=True)])
    except psutil.Error:
        return 0


def _key(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
