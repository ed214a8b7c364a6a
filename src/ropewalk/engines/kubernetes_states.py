"""Reads the status of a job from its pod: state, exit code, and reason, in the words of the cluster.

Pure functions over pods as the API writes them.
"""

from __future__ import annotations

import datetime
import re
import signal
from typing import Any

from ropewalk.engines.engine import JobState, JobStatus
from ropewalk.engines.job_script import NOT_OURS
from ropewalk.engines.kubernetes_api import Manifest
from ropewalk.engines.kubernetes_manifests import CONTAINER

_ADVICE = {
    "ErrImagePull": "check the option image, and image_pull_secrets if its registry is private",
    "ImagePullBackOff": "check the option image, and image_pull_secrets if its registry is private",
    "RegistryUnavailable": "see whether the nodes reach the registry of the option image",
    "ErrImageNeverPull": "the nodes do not have the image and image_pull_policy is Never",
    "InvalidImageName": "check the option image",
    "CreateContainerConfigError": "a Secret or ConfigMap of the option volumes is missing, or run_as_non_root meets "
    "an image whose user is root: set run_as_user",
    "OOMKilled": "it used more memory than it asked for: ask for more, or use less",
    "Evicted": "its node ran out of something: ask for as much memory as it uses",
    "Unschedulable": "compare what it asks for, node_selector and tolerations with `kubectl describe nodes`",
}
"""Advice for a container that does not start, by the cluster's reason."""
_HOPELESS = {
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
}
"""The cluster retries these for ever, so a job would wait for ever."""
BACK_OFF = "ImagePullBackOff"
"""The reason of the wait between two tries to pull an image."""
_PULLS = ("ErrImagePull", BACK_OFF, "RegistryUnavailable")
_NO_IMAGE = re.compile("not found|does not exist|(manifest|name) unknown", re.IGNORECASE)
"""Messages of a registry that has no such image; one that refuses or does not answer may serve it at the next try."""
_NOT_OUR_SECRET = (
    "the pod has found a Secret that its launcher did not write, and has run nothing: somebody who may make Secrets in "
    "the namespace has made one with its name first"
)
_LAST_SIGNAL = 64
"""A program that was ended by a signal is reported with 128 + its number; higher signals do not exist."""


def status(pod: Manifest) -> JobStatus:
    """Return the status of a job whose pod the cluster still knows."""
    told: Manifest = pod.get("status") or {}
    phase = told.get("phase") or "Pending"
    container = _container(told)
    ended: Manifest | None = container.get("terminated")
    if phase in ("Succeeded", "Failed") or ended is not None:
        code = _exit_code(int(ended["exitCode"])) if ended is not None else None
        if code == NOT_OURS:
            return JobStatus(JobState.ENDED, code, _NOT_OUR_SECRET, hopeless=True)
        why = _why_it_ended(told, ended or Manifest())
        return JobStatus(JobState.ENDED, code, why or (_signal(-code, pod) if code is not None and code < 0 else ""))
    if phase == "Pending":
        waiting: Manifest = container.get("waiting") or {}
        hopeless = waiting.get("reason") in _HOPELESS or (
            waiting.get("reason") in _PULLS and _NO_IMAGE.search(waiting.get("message") or "") is not None
        )
        return JobStatus(JobState.PENDING, reason=_why_it_waits(pod, told, container), hopeless=hopeless)
    return JobStatus(JobState.RUNNING, reason=_trouble(pod, told))


def waits_for_image(pod: Manifest) -> str:
    """Return the reason for which a pod waits for its image after a try to pull it has failed; else an empty string."""
    waiting: Manifest = _container(pod.get("status") or {}).get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    return reason if reason in _PULLS else ""


def status_of_gone(pod: Manifest) -> JobStatus:
    """Return the status of a job whose pod was deleted, from its last known state."""
    last = status(pod)
    if last.state is JobState.ENDED:
        return last
    why = last.reason or "somebody deleted it, or its node was removed"
    return JobStatus(JobState.LOST, reason=f"its pod {pod['metadata']['name']}{_where(pod)} was deleted: {why}")


def is_over(pod: Manifest) -> bool:
    """Return whether the job of a pod has ended."""
    return status(pod).state is JobState.ENDED


def ended_s_ago(pod: Manifest, now: datetime.datetime) -> float:
    """Return the seconds since the end of a pod's job; 0 if it has not ended, or the time is unknown."""
    if not is_over(pod):
        return 0.0
    ended: Manifest = _container(pod["status"]).get("terminated") or Manifest()
    return _seconds_since(ended.get("finishedAt") or pod["metadata"].get("creationTimestamp"), now)


def starting_s(pod: Manifest, now: datetime.datetime) -> float:
    """Return the seconds for which a node has been starting a pod; 0 if it runs or has ended, or no node has it yet."""
    told: Manifest = pod.get("status") or {}
    if status(pod).state is not JobState.PENDING:
        return 0.0
    return _seconds_since(told.get("startTime"), now)  # when the node took it, before it fetched image and Secret


def _seconds_since(when: object, now: datetime.datetime) -> float:
    try:
        return (now - datetime.datetime.fromisoformat(str(when))).total_seconds()
    except ValueError:
        return 0.0


def _container(told: Manifest) -> Manifest:
    """Return the state of our container; service meshes add others to the pod."""
    containers: list[Manifest] = told.get("containerStatuses") or []
    return next((each["state"] for each in containers if each["name"] == CONTAINER and "state" in each), Manifest())


def _exit_code(code: int) -> int:
    return 128 - code if 128 < code <= 128 + _LAST_SIGNAL else code


def _signal(number: int, pod: Manifest) -> str:
    try:
        return f"ended by {signal.Signals(number).name}{_where(pod)}"
    except ValueError:
        return f"ended by signal {number}{_where(pod)}"


def _why_it_ended(told: Manifest, ended: Manifest) -> str:
    # "Error" and "Completed" only repeat the exit code.
    words = [told.get("reason"), told.get("message")]
    if ended.get("reason") not in ("Error", "Completed"):
        words += [ended.get("reason"), ended.get("message")]
    disruption = _condition(told, "DisruptionTarget")
    if disruption.get("status") == "True":
        words += [disruption.get("reason"), disruption.get("message")]
    return _advised(words)


def _why_it_waits(pod: Manifest, told: Manifest, container: Manifest) -> str:
    waiting: Manifest = container.get("waiting") or {}
    scheduled = _condition(told, "PodScheduled")
    if scheduled.get("status") == "False":
        return _advised([scheduled.get("reason"), scheduled.get("message")])
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return _advised([waiting.get("reason"), waiting.get("message")])
    return f"starting{_where(pod)}" if pod["spec"].get("nodeName") else ""


def _trouble(pod: Manifest, told: Manifest) -> str:
    """Explain why a running pod may not run any more."""
    disruption = _condition(told, "DisruptionTarget")
    if disruption.get("status") == "True":
        return _advised([f"it has to leave{_where(pod)}", disruption.get("reason"), disruption.get("message")])
    if told.get("phase") == "Unknown" or told.get("reason") == "NodeLost":
        return _advised([f"nothing is heard{_where(pod)}", told.get("reason"), told.get("message")])
    if pod["metadata"].get("deletionTimestamp"):
        return f"it is being deleted{_where(pod)}"
    if _condition(told, "Ready").get("status") == "False":
        return f"nothing is heard{_where(pod)}: the cluster says that it is not ready"
    return ""


def _where(pod: Manifest) -> str:
    node = pod["spec"].get("nodeName")
    return f" on node {node}" if node else ""


def _condition(told: Manifest, kind: str) -> Manifest:
    conditions: list[Manifest] = told.get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), Manifest())


def _advised(words: list[Any]) -> str:
    said = list(dict.fromkeys(str(word).strip() for word in words if word))
    advice = [_ADVICE[word] for word in said if word in _ADVICE][:1]
    return "; ".join([": ".join(said), *advice])
