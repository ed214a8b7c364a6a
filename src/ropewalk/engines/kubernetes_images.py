"""How long a pod may wait whose image cannot be pulled.

    the registry has no such image ── at once ──────────▶ hopeless (kubernetes_states)
    it does not answer, or refuses ── for `image_pull_s` ─▶ hopeless

Kubelets try again for ever, after pauses of up to 5 minutes. A registry that is restarted, limits requests or hands out
no token for a moment serves the image at one of the next tries.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from ropewalk.engines.engine import JobState, JobStatus
from ropewalk.engines.kubernetes_api import Manifest
from ropewalk.engines.kubernetes_states import BACK_OFF, waits_for_image


class ImageJudge:
    """Decides which waits for an image are in vain.

    Args:
        image_pull_s: seconds for which an image may fail to be pulled.
        clock: the time in seconds.
    """

    def __init__(self, image_pull_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._image_pull_s = image_pull_s
        self._clock = clock
        self._waits: dict[str, tuple[float, str]] = {}
        """Since when jobs wait, by id, and what was said of the last try."""

    def judge(self, id: str, pod: Manifest, status: JobStatus) -> JobStatus:
        """Return the status of a job, with the end of its wait if its image cannot be pulled."""
        if status.state is not JobState.PENDING:
            self._waits.pop(id, None)
            return status
        why = waits_for_image(pod)
        if not why or status.hopeless:
            return status
        now = self._clock()
        since, said = self._waits.get(id, (now, status.reason))
        if why != BACK_OFF:  # between two tries the cluster says no more than that there will be another one
            said = status.reason
        self._waits[id] = since, said
        is_over = now - since >= self._image_pull_s
        words = (
            f"it could not be pulled for {self._image_pull_s} s (image_pull_s)"
            if is_over
            else f"the cluster goes on trying, and is given {self._image_pull_s} s for it (image_pull_s)"
        )
        return dataclasses.replace(status, reason=f"{said}; {words}", hopeless=is_over)
