"""`LearnerUpdates`: one update of a learner, the same in lock-step, in asynchronous runs and where they are repeated.

batch ─▶ learner.update ─▶ priorities, written back to replay
                        ─▶ metrics with the lag of the batch, the number of updates, a digest when it is due
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.pipeline.tracing.trees import map_tensors
from ropewalk.rl.counters import Counters
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learners.learner import Learner
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.variables import lag_metrics


class LearnerUpdates:
    """Updates a learner, and keeps what an experiment shows of its updates.

    Args:
        learner: what is trained.
        write_priorities: called with the keys of a batch and their new priorities, if the agent has priorities.
        digest_every: updates between digests of the weights; 0 takes none.

    Attributes:
        learner: what is trained.
        counters: counters of the experiment; `updates` is counted here, everything else by the owner.
        metrics: metrics of the last update, with the lag of its batch in versions.
        digests: digests of the weights, one after every `digest_every` updates.
    """

    def __init__(
        self,
        learner: Learner,
        write_priorities: Callable[[NDArray[np.int64], NDArray[np.float64]], object],
        digest_every: int = 0,
    ) -> None:
        self.learner: Learner = learner
        self.counters: Counters = Counters()
        self.metrics: Mapping[str, float] = {}
        self.digests: list[str] = []
        self._write_priorities, self._digest_every = write_priorities, digest_every

    def update(self, batch: Batch, progress: float, version: int) -> None:
        """Learn from one batch.

        Args:
            batch: what was sampled.
            progress: share of the experiment's steps that are done, 0 to 1.
            version: version of the newest weights that were published, by which the lag of the batch is measured.

        Raises:
            NotFinite: the loss or a gradient is NaN or infinite, and the agent does not skip such batches.
        """
        self.learner.version = version
        update = self.learner.update(batch, progress)
        if update.priorities is not None:
            self._write_priorities(batch.info.keys, update.priorities)
        lags = {} if "policy_lag" in update.metrics else lag_metrics(version, batch.info.version)
        self.metrics = {**lags, **update.metrics}
        self.counters.updates += 1
        if self._digest_every and self.counters.updates % self._digest_every == 0:
            self.digests.append(digest_of(self.learner.variables()))

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's state, on the processor, with the counters and the digests."""
        return {
            # On the CPU: a forked child writes it, which cannot use a device that this process uses.
            "learner": map_tensors(lambda tensor: tensor.detach().cpu(), self.learner.state_dict()),
            "counters": self.counters.state_dict(),
            "digests": list(self.digests),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; other entries of it are ignored."""
        self.learner.load_state_dict(state["learner"])
        self.counters.load_state_dict(state["counters"])
        self.digests = list(state["digests"])


def digest_of(arrays: Mapping[str, Array]) -> str:
    """Return a digest of named arrays: equal for equal bits, whatever the order of the names."""
    seen = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        seen.update(f"{name}{array.dtype}{array.shape}".encode())
        seen.update(array.tobytes())
    return seen.hexdigest()[:16]


__all__ = ["LearnerUpdates", "digest_of"]
