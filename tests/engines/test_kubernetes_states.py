"""What a pod's status means, for statuses as clusters write them."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.engines.engine import JobState
from ropewalk.engines.kubernetes_states import is_over, status, status_of_gone


def pod(phase: str, state: dict[str, Any] | None = None, node: str = "n1", **told: Any) -> dict[str, Any]:
    containers = [{"name": "istio-proxy", "state": {"running": {}}}]
    if state is not None:
        containers.append({"name": "agent", "state": state})
    spec = {"nodeName": node} if node else {}
    return {
        "metadata": {"name": "p"},
        "spec": spec,
        "status": {"phase": phase, "containerStatuses": containers, **told},
    }


def ended(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, **more}}


def unschedulable(message: str) -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]


@pytest.mark.parametrize(
    ("reason", "message", "hopeless"),
    [
        ("ErrImagePull", "failed to pull and unpack image x:1: x:1: not found", True),
        ("ErrImagePull", "pull access denied, repository does not exist or may require authorization", True),
        ("ErrImagePull", "failed to authorize: unexpected status 403 Forbidden", False),
        ("ErrImagePull", "dial tcp 10.0.0.1:443: i/o timeout", False),
        ("ImagePullBackOff", "Back-off pulling image x:1", False),
        ("ImagePullBackOff", "Back-off pulling image x:1: ErrImagePull: x:1: not found", True),
        ("InvalidImageName", "couldn't parse image name x::1", True),
        ("ErrImageNeverPull", "", True),
        ("ContainerCreating", "", False),
    ],
)
def test_a_pod_whose_image_does_not_exist_will_never_run(reason: str, message: str, hopeless: bool) -> None:
    assert status(pod("Pending", {"waiting": {"reason": reason, "message": message}})).hopeless == hopeless


@pytest.mark.parametrize(
    ("given", "state", "code", "words"),
    [
        (pod("Pending", node=""), JobState.PENDING, None, ""),
        (pod("Pending"), JobState.PENDING, None, "starting on node n1"),
        (
            pod(
                "Pending", node="", conditions=unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
            ),
            JobState.PENDING,
            None,
            "Insufficient nvidia.com/gpu",
        ),
        (
            pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}}),
            JobState.PENDING,
            None,
            "ImagePullBackOff: Back-off pulling image x; check the option image",
        ),
        (pod("Pending", {"waiting": {"reason": "InvalidImageName"}}), JobState.PENDING, None, "check the option image"),
        (pod("Running", {"running": {}}), JobState.RUNNING, None, ""),
        (pod("Succeeded", ended(0, "Completed")), JobState.ENDED, 0, ""),
        (pod("Failed", ended(7)), JobState.ENDED, 7, ""),
        (pod("Failed", ended(143)), JobState.ENDED, -15, "SIGTERM on node n1"),
        (pod("Failed", ended(255)), JobState.ENDED, 255, ""),
        (pod("Failed", ended(137, "OOMKilled")), JobState.ENDED, -9, "OOMKilled; it used more memory"),
        (pod("Running", ended(0, "Completed")), JobState.ENDED, 0, ""),  # a sidecar still runs
        (
            pod("Failed", ended(128, "StartError", message='exec: "/no": not found')),
            JobState.ENDED,
            128,
            'StartError: exec: "/no": not found',
        ),
        (
            pod("Failed", reason="Evicted", message="The node was low on resource: memory."),
            JobState.ENDED,
            None,
            "Evicted: The node was low on resource: memory.",
        ),
        (pod("Failed", ended(143), reason="DeadlineExceeded"), JobState.ENDED, -15, "DeadlineExceeded"),
        (pod("Unknown", {"running": {}}, reason="NodeLost"), JobState.RUNNING, None, "nothing is heard on node n1"),
        (
            pod("Running", {"running": {}}, conditions=[{"type": "Ready", "status": "False"}]),
            JobState.RUNNING,
            None,
            "nothing is heard on node n1",
        ),
        (
            pod(
                "Running",
                {"running": {}},
                conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
            ),
            JobState.RUNNING,
            None,
            "it has to leave on node n1: PreemptionByScheduler",
        ),
    ],
)
def test_a_status_is_told_in_the_words_of_the_cluster(
    given: dict[str, Any], state: JobState, code: int | None, words: str
) -> None:
    told = status(given)
    assert (told.state, told.exit_code) == (state, code)
    assert (words in told.reason) if words else told.reason == ""
    assert is_over(given) == (state is JobState.ENDED)


def test_a_deleted_pod_is_lost_and_the_last_that_was_said_of_it_is_why() -> None:
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    told = status_of_gone(pod("Running", {"running": {}}, conditions=[disruption]))
    assert told.state is JobState.LOST
    assert "p on node n1 was deleted" in told.reason and "DeletionByTaintManager" in told.reason


def test_a_pod_that_ended_before_it_was_deleted_keeps_its_exit_code() -> None:
    told = status_of_gone(pod("Failed", ended(3)))
    assert (told.state, told.exit_code) == (JobState.ENDED, 3)
