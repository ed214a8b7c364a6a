"""`ParameterShard`: one server of a parameter server, as an ordinary object for `rw.Service`.

    servers = program.add(rw.Service(ParameterShard), name="servers", replicas=2, restart="on_failure")
    program.add(rw.Worker(train, servers), replicas=4)          # train(servers): ParameterServer(servers, "gd_sec")

It needs no configuration: workers bring it along. Its state is saved from time to time as that of any service, so a
killed shard is restored from its last saved state, and workers push again what it lacks.

Pushes are serialized and short. A pull waits in a thread of its own, at most for `wait_s`, for the first of its pieces
that is ready: so there is one such thread for each worker, whatever the number of pieces.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ropewalk.calls.markers import concurrent, idempotent
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.memoryless import state_dtype
from ropewalk.exchange.parameter_server.outcomes import (
    Accepted,
    Behind,
    Enrolled,
    Outdated,
    PieceStanding,
    Pulled,
    ServerSettings,
)
from ropewalk.exchange.parameter_server.pieces import tensor_of
from ropewalk.exchange.parameter_server.shard import Shard

MAX_PULLS = 4096
"""Number of pulls that may wait at the same time: one per worker, and a few for repeated calls."""


class ParameterShard:
    """Holds some pieces of a model; see `Shard` for the meaning of its methods.

    Tensors travel as bytes and by piece: `weights` in the dtype of the piece, `memories` and `errors` in that of the
    states of compressors, which is float32 or wider.
    """

    def __init__(self) -> None:
        self._shard = Shard()
        self._layouts: dict[int, Layout] = {}
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"<ParameterShard of {len(self._layouts)} buckets>"

    @idempotent
    def introduce(
        self, settings: ServerSettings, layouts: Mapping[int, Layout], weights: Mapping[int, bytes] | None = None
    ) -> tuple[int, ...]:
        """Take settings, layouts and perhaps initial weights; return the keys of pieces that lack weights."""
        with self._changed:
            self._introduce(settings, layouts)
            if weights:
                self._shard.provide({key: tensor_of(found, layouts[key].dtype) for key, found in weights.items()})
                self._changed.notify_all()
            return self._shard.lacking

    @idempotent
    def enrol(
        self,
        settings: ServerSettings,
        layouts: Mapping[int, Layout],
        worker: str,
        epoch: int,
        members: Sequence[str],
        step: int,
        memories: Mapping[int, bytes] | None = None,
        ticket: str = "",
    ) -> Enrolled | Outdated | Behind:
        """Enrol a worker; settings and layouts come along, because this shard may have restarted with nothing."""
        with self._changed:
            self._introduce(settings, layouts)
            outcome = self._shard.enrol(worker, epoch, members, step, self._states(memories), ticket)
            self._changed.notify_all()
            return outcome

    @idempotent
    def push(
        self, worker: str, epoch: int, step: int, key: int, data: bytes, samples: float
    ) -> Accepted | Behind | Outdated:
        with self._changed:
            before = self._shard.num_changes
            outcome = self._shard.push(worker, epoch, step, key, data, samples)
            if self._shard.num_changes != before:  # most pushes only wait for others, and no pull waits for them alone
                self._changed.notify_all()
            return outcome

    @concurrent(MAX_PULLS)
    @idempotent
    def pull(self, worker: str, epoch: int, step: int, keys: Sequence[int], wait_s: float = 1.0) -> Pulled | Outdated:
        """Return the answers that are ready for these pieces; wait for the first of them, at most `wait_s` seconds."""
        due = time.monotonic() + wait_s
        with self._changed:
            while True:
                pulled = self._shard.pull(worker, epoch, step, keys)
                left_s = due - time.monotonic()
                if isinstance(pulled, Outdated) or pulled.answers or pulled.behind or left_s <= 0:
                    return pulled
                self._changed.wait(left_s)

    @idempotent
    def behind(self, worker: str, epoch: int, step: int, keys: Sequence[int]) -> dict[int, int] | Outdated:
        with self._changed:
            return self._shard.behind(worker, epoch, step, keys)

    @concurrent(MAX_PULLS)
    @idempotent
    def standing(
        self, keys: Sequence[int], with_memory: bool = True, wait_s: float = 1.0
    ) -> dict[int, PieceStanding] | None:
        """Return the state of these pieces; wait until it is complete, at most `wait_s` seconds."""
        due = time.monotonic() + wait_s
        with self._changed:
            while True:
                found = self._shard.standing(keys, with_memory)
                left_s = due - time.monotonic()
                if found is not None or left_s <= 0:
                    return found
                self._changed.wait(left_s)

    @idempotent
    def leave(
        self,
        worker: str,
        epoch: int,
        step: int,
        memories: Mapping[int, bytes] | None = None,
        errors: Mapping[int, bytes] | None = None,
    ) -> Accepted | Outdated:
        with self._changed:
            if not self._layouts:  # the shard restarted with nothing, not even this worker
                memories = errors = None
            outcome = self._shard.leave(worker, epoch, step, self._states(memories), self._states(errors))
            self._changed.notify_all()
            return outcome

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state; tensors in it are never changed in place."""
        with self._changed:
            return {"shard": self._shard.state_dict(), "layouts": dict(self._layouts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state."""
        with self._changed:
            self._shard.load_state_dict(state["shard"])
            self._layouts = dict(state["layouts"])

    def _introduce(self, settings: ServerSettings, layouts: Mapping[int, Layout]) -> None:
        self._shard.introduce(settings, layouts)
        self._layouts = dict(layouts)

    def _states(self, data: Mapping[int, bytes] | None) -> dict[int, Tensor] | None:
        if data is None:
            return None
        return {key: tensor_of(found, state_dtype(self._layouts[key])) for key, found in data.items()}
