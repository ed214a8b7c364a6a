"""The Kubernetes engine: bare pods, through the official client.

A job is a pod that is never restarted, found again by its labels; its standard input is a Secret that the pod owns. The
names of both follow from the run, the request and a number, so that repeating a request creates nothing twice.

    submit ──> create pod, create Secret that it owns        kubernetes_manifests: the objects that are sent
    poll   <── PodWatch: list, then every change             kubernetes_states: the meaning of a pod's status
                                                              kubernetes_room: whether a pod can ever run
                                                              kubernetes_images: how long it waits for its image
    cancel ──> delete; with a grace of 0 if the node does not end the pod
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import getpass
import importlib
import ipaddress
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ropewalk.engines import kubernetes_manifests as manifests
from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.kubernetes_api import ApiError, KubernetesApi, Manifest, retrying
from ropewalk.engines.kubernetes_check import findings
from ropewalk.engines.kubernetes_errors import explain
from ropewalk.engines.kubernetes_images import ImageJudge
from ropewalk.engines.kubernetes_nodes import KubernetesNode, nodes_for, processes_per_pod
from ropewalk.engines.kubernetes_options import KubernetesOptions
from ropewalk.engines.kubernetes_room import RoomJudge, asked
from ropewalk.engines.kubernetes_states import ended_s_ago, is_over, starting_s, status, status_of_gone
from ropewalk.engines.kubernetes_watch import KnownPod, PodWatch
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import Resources
from ropewalk.engines.side_by_side import side_by_side
from ropewalk.errors import EngineError

_CANCEL_GRACE_S = 1
"""The grace for a process that ignores SIGTERM; a cancelled agent needs no time to clean up."""
_CANCEL_WAIT_S = 4.0
"""A node that is alive ends a pod within this time; a lost node never does."""
_LAST_WORDS_S = 1.5
_LOG_S = 5.0
"""The timeout for a log, which the pod's node sends if it is alive."""
_FIRST_LIST_S = 10.0
_STALE_S = 30.0
"""Older states are not reported: the error of the watch says more."""
_FORGOTTEN_S = 3600.0
"""A launcher that is alive has polled an ended pod within this time, and given up one that does not start."""
_KILLED = -9


class KubernetesEngine(Engine):
    """Runs jobs as pods in one namespace of a cluster."""

    name = "kubernetes"
    reach = Reach.NETWORK

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        """Read the options; the first request connects to the cluster."""
        self.options = read_options(self.name, KubernetesOptions, options or {})
        self.python = self.options.python
        self._user = self.options.user or _account()
        self._known: dict[str, KnownPod] = {}
        """The last known state of our own jobs, by id, from the closed watches of their runs."""
        self._watches: dict[str, PodWatch] = {}
        self._cancelled: dict[str, str] = {}
        """The output of jobs that we have ended, by id: it is gone with their pods."""
        self._secrets: dict[str, list[str]] = {}
        """The names of the Secrets of our own jobs, by id."""
        self._room = RoomJudge(lambda: self._api.list_nodes(), self.options.unschedulable_s)
        self._images = ImageJudge(self.options.image_pull_s)

    @functools.cached_property
    def _api(self) -> KubernetesApi:
        return KubernetesApi(self.options.kubeconfig, self.options.context, self.options.namespace)

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        names = [manifests.job_name(run_id, request_id, index) for index in range(count)]
        if len(spec.stdin) > manifests.MOST_STDIN_BYTES:
            raise EngineError(
                f"a job's standard input of {len(spec.stdin)} bytes is more than the {manifests.MOST_STDIN_BYTES} that "
                "are put into Kubernetes Secrets; if it is the code of a submitted script, leave large files out of it "
                "with .ropewalkignore, or put it into the image or on a shared file system, and submit with code=shared"
            )
        watch = self._watch(run_id)
        if not self._requests and not self.options.keep_pods:
            self._remove_forgotten()
        try:
            for pod in side_by_side(lambda name: self._create(spec, name, run_id, request_id), names):
                watch.put(pod)
        except (ApiError, KeyboardInterrupt) as error:
            with contextlib.suppress(ApiError):  # also pods whose answer was lost; the cluster may be out of reach now
                side_by_side(self._delete_now, names)
            if isinstance(error, KeyboardInterrupt):
                raise
            wanted = asked(manifests.pod(self.options, spec, names[0], {}, run_id))
            doing = f"create pod {names[0]}" if count == 1 else f"create {count} pods like {names[0]}"
            raise explain(error, f"{doing}, which asks for {wanted}", self._api) from error
        return names

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        with self._lock:
            pods = self._look_up(ids) if ids else {}
            return {id: self._status(id, pods.get(id)) for id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        with self._lock:
            try:
                alive = self._alive(ids)
            except EngineError:  # a server that lists no pods, because it is overloaded, may delete them all the same
                ours = {id for each in self._requests.values() for id in each if not _is_settled(self._known.get(id))}
                with contextlib.suppress(ApiError):
                    side_by_side(self._delete_now, [id for id in ids if id in ours])
                raise
            self._cancelled.update(zip(alive, side_by_side(self._last_words, alive), strict=True))
            with self._explained("delete pods"):
                side_by_side(lambda id: self._delete(id, _CANCEL_GRACE_S), alive)
                deadline = time.monotonic() + _CANCEL_WAIT_S
                pause_s = 0.05
                while (left := self._alive(alive)) and time.monotonic() < deadline:
                    time.sleep(pause_s)
                    pause_s = min(0.5, 1.5 * pause_s)
                # Their nodes do not answer. A node that is alive after all ends its pods when it learns of this.
                side_by_side(self._delete_now, left)

    def ask_to_end(self, ids: Sequence[str], grace_s: float) -> bool:
        with self._lock:
            alive = self._alive(ids)
            with self._explained("delete pods"):
                side_by_side(lambda id: retrying(lambda: self._api.delete_pod(id, max(1, round(grace_s)))), alive)
            return bool(alive)

    def launcher_options(self, options: Mapping[str, object]) -> dict[str, object]:
        if not self.options.automount_service_account_token:
            raise EngineError(
                "a launcher in a pod needs the rights of a service account: make one with deploy/kubernetes/rbac.yaml,"
                " and give the options service_account=ropewalk automount_service_account_token=true; its agents get"
                " them too, unless you start deploy/kubernetes/launcher.yaml instead"
            )
        # The files of this machine are not in the pod, whose own account replaces them; this also overrides a
        # ropewalk.toml that is sent with the code.
        return {**options, "kubeconfig": "", "context": "", "namespace": self._api.namespace}

    def find(self, run_id: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._list(manifests.selector(run_id)) if not is_over(pod)]

    def runs(self) -> dict[str, list[str]]:
        runs: dict[str, list[str]] = {}
        for pod in self._list(manifests.selector(user=self._user)):
            if not is_over(pod) and (run := manifests.run_of(pod)):
                runs.setdefault(run, []).append(pod["metadata"]["name"])
        return runs

    def remains(self) -> dict[str, list[str]]:
        # We may not list Secrets, and need not: an agent's Secret has the name of its pod, and is deleted with it.
        remains: dict[str, list[str]] = {}
        for pod in self._list(manifests.selector(user=self._user)):
            if is_over(pod) and (run := manifests.run_of(pod)):
                what = f"pod {pod['metadata']['name']} ({pod['status']['phase']}) with its Secret"
                remains.setdefault(run, []).append(what)
        return remains

    def remove_remains(self, run_id: str) -> None:
        ended = [pod["metadata"]["name"] for pod in self._list(manifests.selector(run_id)) if is_over(pod)]
        with self._explained("delete pods that have ended"):
            side_by_side(self._delete_now, ended)

    def logs(self, id: str) -> str:
        try:
            return retrying(lambda: self._api.read_log(id, manifests.CONTAINER, _LOG_S), patience_s=_LOG_S)
        except ApiError as error:
            if error.status in (400, 404):  # the container has not started, or is gone
                return self._cancelled.get(id, "")
            raise explain(error, f"give the log of pod {id}", self._api) from error

    def render(self, spec: JobSpec) -> str:
        name, labels = "ropewalk-run-request-0", manifests.labels("run", "request", self._user)
        objects = [manifests.pod(self.options, spec, name, labels, "run")]
        for secret in manifests.secrets(name, labels, spec.stdin, "uid-of-the-pod"):
            secret["data"] = {
                key: f"<{len(base64.b64decode(part))} bytes, not shown>" for key, part in secret["data"].items()
            }
            objects.append(secret)
        return _yaml(objects)

    def check(self) -> list[EngineFinding]:
        try:
            api = self._api
        except EngineError as error:
            return [EngineFinding("Kubernetes client and configuration", False, str(error))]
        return findings(api, self.options)

    def per_job(self, process: Resources) -> int | None:
        if self.options.per_pod is not None:
            return self.options.per_pod
        return processes_per_pod(self._nodes, process, self.options)

    def hosts(self) -> list[str]:
        addresses = [address for node in self._nodes or [] for address in node.addresses]
        if addresses:
            return addresses
        with contextlib.suppress(ValueError):  # it is a host name, not an address
            address = ipaddress.ip_address(urlsplit(self._api.server).hostname or "")
            return [] if address.is_loopback else [str(address)]
        return []

    def close(self) -> None:
        with self._lock:
            for watch in self._watches.values():
                self._known.update(watch.last_known())
                watch.close()
            self._watches.clear()
            ours = {id for ids in self._requests.values() for id in ids}
            ended = [id for id in ours if (known := self._known.get(id)) and not known.is_gone and is_over(known.pod)]
            with contextlib.suppress(ApiError):  # leftover pods do no harm
                if self.options.keep_pods:  # for inspection; their credentials are not needed any more
                    side_by_side(self._delete_secrets, ended)
                else:
                    for id in side_by_side(self._delete_now, ended):
                        self._known[id].is_gone = True
            if "_api" in self.__dict__:
                self._api.close()

    def _create(self, spec: JobSpec, name: str, run_id: str, request_id: str) -> Manifest:
        labels = manifests.labels(run_id, request_id, self._user)
        manifest = manifests.pod(self.options, spec, name, labels, run_id, self._nodes_of(spec.away_from))
        try:
            pod = retrying(lambda: self._api.create_pod(manifest))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            pods = retrying(lambda: self._api.list_pods(manifests.selector(run_id))).pods
            pod = next((each for each in pods if each["metadata"]["name"] == name), None)
            if pod is None:
                raise
        self._secrets[name] = manifests.secret_names(name, len(spec.stdin))
        # Created after the pod, which waits for them: a Secret with an owner is never left over.
        for secret in manifests.secrets(name, labels, spec.stdin, pod["metadata"]["uid"]):
            try:
                retrying(functools.partial(self._api.create_secret, secret))
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
        return pod

    def _nodes_of(self, ids: Sequence[str]) -> list[str]:
        """Return the nodes of jobs that have not ended on them: a node that reports an end is alive."""
        known = dict(self._known)
        for watch in list(self._watches.values()):
            known.update(watch.last_known())
        pods = [known[id].pod for id in ids if id in known]
        return sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName") and not is_over(pod)})

    def _remove_forgotten(self) -> None:
        """Remove pods, with their Secrets, that ended long ago and were not removed by their launchers.

        A launcher that dies between a pod and its Secret leaves a pod that waits for it for ever, with its share of a
        node. No pod takes this long to start otherwise.
        """
        now = datetime.datetime.now(datetime.UTC)
        with contextlib.suppress(ApiError):  # creating the pod will fail in the same way, and say why
            pods = self._api.list_pods(manifests.selector(user=self._user)).pods
            ages = {pod["metadata"]["name"]: max(ended_s_ago(pod, now), starting_s(pod, now)) for pod in pods}
            old = [name for name, age_s in ages.items() if age_s > _FORGOTTEN_S]
            side_by_side(self._delete_now, old)

    def _last_words(self, id: str) -> str:
        with contextlib.suppress(ApiError):  # a lost node never sends its logs
            return self._api.read_log(id, manifests.CONTAINER, _LAST_WORDS_S)
        return ""

    def _delete(self, id: str, grace_s: int) -> str:
        retrying(lambda: self._api.delete_pod(id, grace_s))
        return self._delete_secrets(id)

    def _delete_secrets(self, id: str) -> str:
        """Delete the Secrets of a pod now; of jobs of another launcher the cluster deletes those that have a number."""
        for name in self._secrets.get(id, [id]):
            retrying(functools.partial(self._api.delete_secret, name))
        return id

    def _delete_now(self, id: str) -> str:
        return self._delete(id, 0)

    def _alive(self, ids: Sequence[str]) -> list[str]:
        pods = self._look_up(ids) if ids else {}
        return [id for id in ids if id in pods and not pods[id].is_gone and not is_over(pods[id].pod)]

    def _status(self, id: str, known: KnownPod | None) -> JobStatus:
        if known is None:
            return JobStatus(JobState.LOST, reason="no such pod")
        if not known.is_gone:
            return self._images.judge(id, known.pod, self._room.judge(id, known.pod, status(known.pod)))
        gone = status_of_gone(known.pod)
        if gone.state is JobState.LOST and id in self._cancelled:
            return JobStatus(JobState.ENDED, _KILLED, "cancelled")
        return gone

    def _look_up(self, ids: Sequence[str]) -> dict[str, KnownPod]:
        """Return the last known state of pods, from the watches of our runs, or by a request."""
        pods = dict(self._known)
        for (run_id, _), names in self._requests.items():
            if run_id not in self._watches and any(id in names and not _is_settled(pods.get(id)) for id in ids):
                self._watch(run_id)  # it was closed by `close`
        for watch in self._watches.values():
            with self._explained("list pods"):
                pods.update(watch.pods(_FIRST_LIST_S))
            if watch.error is not None and watch.age_s > _STALE_S:
                raise explain(watch.error, f"say for {watch.age_s:.0f} s how the pods are", self._api) from watch.error
        if not all(id in pods for id in ids):
            for pod in self._list(manifests.selector()):
                pods.setdefault(pod["metadata"]["name"], KnownPod(pod))
        return pods

    def _watch(self, run_id: str) -> PodWatch:
        if run_id not in self._watches:
            self._watches[run_id] = PodWatch(self._api, manifests.selector(run_id))
        return self._watches[run_id]

    def _list(self, selector: str) -> list[Manifest]:
        with self._explained("list pods"):
            return retrying(lambda: self._api.list_pods(selector)).pods

    @functools.cached_property
    def _nodes(self) -> list[KubernetesNode] | None:
        """Return the nodes that our pods may go to; None if we may not list nodes."""
        try:
            return nodes_for(self.options, retrying(self._api.list_nodes))
        except ApiError as error:
            if error.status == 403:
                return None
            raise explain(error, "list nodes", self._api) from error

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Generator[None]:
        try:
            yield
        except ApiError as error:
            raise explain(error, doing, self._api) from error


def _is_settled(known: KnownPod | None) -> bool:
    return known is not None and (known.is_gone or is_over(known.pod))


def _account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user has no name, as in many containers
        return "nobody"


def _yaml(objects: list[Manifest]) -> str:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as error:
        raise EngineError(
            f'the engine kubernetes needs the official client: pip install "ropewalk[kubernetes]" ({error})'
        ) from error
    return str(yaml.safe_dump_all(objects, sort_keys=False, width=1000, allow_unicode=True))
