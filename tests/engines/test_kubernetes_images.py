"""How long a pod waits for an image that cannot be pulled: as long as a registry may be away, and not for ever."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.engines.engine import JobStatus
from ropewalk.engines.kubernetes_images import ImageJudge
from ropewalk.engines.kubernetes_states import status

NO_ANSWER = "dial tcp 10.0.0.1:443: i/o timeout"


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pod(reason: str, message: str = "", phase: str = "Pending") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}} if phase == "Pending" else {"running": {}}
    told = {"phase": phase, "containerStatuses": [{"name": "agent", "state": state}]}
    return {"metadata": {"name": "p"}, "spec": {"nodeName": "n1"}, "status": told}


def told(judge: ImageJudge, reason: str, message: str = "", phase: str = "Pending") -> JobStatus:
    given = pod(reason, message, phase)
    return judge.judge("p", given, status(given))


def test_a_registry_that_does_not_answer_is_given_time_and_the_wait_is_told(clock: Clock) -> None:
    # ImagePullBackOff ended a run at once, though the registry was only restarted.
    judge = ImageJudge(300, clock)
    first = told(judge, "ErrImagePull", NO_ANSWER)
    assert not first.hopeless
    assert NO_ANSWER in first.reason and "is given 300 s for it (image_pull_s)" in first.reason
    clock.now_s = 299.0
    again = told(judge, "ImagePullBackOff", "Back-off pulling image x")
    assert again == first, "what the registry said is told once, and not each pause"
    clock.now_s = 300.0
    last = told(judge, "ImagePullBackOff", "Back-off pulling image x")
    assert last.hopeless and f"{NO_ANSWER}; check the option image" in last.reason
    assert "could not be pulled for 300 s" in last.reason


def test_a_try_that_is_under_way_does_not_begin_the_time_anew(clock: Clock) -> None:
    judge = ImageJudge(10, clock)
    told(judge, "ErrImagePull", NO_ANSWER)
    clock.now_s = 5.0
    assert "image_pull_s" not in told(judge, "ContainerCreating").reason
    clock.now_s = 10.0
    assert told(judge, "ErrImagePull", NO_ANSWER).hopeless


def test_an_image_that_came_at_last_is_forgotten(clock: Clock) -> None:
    judge = ImageJudge(10, clock)
    told(judge, "ErrImagePull", NO_ANSWER)
    assert told(judge, "", phase="Running") == status(pod("", phase="Running"))
    clock.now_s = 20.0
    assert not told(judge, "ErrImagePull", NO_ANSWER).hopeless


@pytest.mark.parametrize("reason", ["InvalidImageName", "ErrImageNeverPull", "ErrImagePull"])
def test_what_never_passes_is_given_up_at_once(clock: Clock, reason: str) -> None:
    given = pod(reason, "x:1: not found")
    assert ImageJudge(300, clock).judge("p", given, status(given)) == status(given)
    assert status(given).hopeless
