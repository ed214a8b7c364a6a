"""Follows the pods of a run: a list, then every change, until the watch is closed.

    list ──> version ──> watch from there ──> events ──> PodTable ──> `PodWatch.pods`
     ▲                     │      ▲ the stream ends or breaks: again from the last version seen
     └── 410: too old ─────┘      └ 429, 5xx, no answer: wait (as long as the server says), then again

A watch holds a thread and a connection until it is closed. `age_s` says how old its information is.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.engines.kubernetes_api import ApiError, KubernetesApi, Manifest, PodStream

logger = logging.getLogger(__name__)

_WATCH_S = 25
"""An idle watch sends nothing; after this many seconds it is renewed, so that a cut connection is noticed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_GONE, _ODD = 410, 502
_HOPELESS = (401, 403, 404)
"""HTTP statuses that a retry does not help against."""


@dataclass(slots=True)
class KnownPod:
    """The last known state of a pod."""

    pod: Manifest
    is_gone: bool = False
    """Whether the cluster has deleted it since."""
    seen: int = 0
    """When it was last seen, in ticks of the table's own clock."""


class PodTable:
    """Pods by name, changed by lists and events. Not thread safe."""

    def __init__(self) -> None:
        self.pods: dict[str, KnownPod] = {}
        self._tick = 0

    def begin_list(self) -> int:
        """Note that a list is about to be requested: pods that are put here later may be missing in it."""
        self._tick += 1
        return self._tick

    def relist(self, pods: list[Manifest], began: int) -> None:
        """Apply a whole list."""
        names = {pod["metadata"]["name"] for pod in pods}
        for name, known in self.pods.items():
            if name not in names and known.seen < began:
                known.is_gone = True
        for pod in pods:
            self._set(pod, is_gone=False)

    def event(self, kind: str, pod: Manifest) -> None:
        """Apply one change."""
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._set(pod, is_gone=kind == "DELETED")

    def put(self, pod: Manifest) -> None:
        """Add a pod that was just created, unless it is known already."""
        if pod["metadata"]["name"] not in self.pods:
            self._set(pod, is_gone=False)

    def _set(self, pod: Manifest, is_gone: bool) -> None:
        self._tick += 1
        self.pods[pod["metadata"]["name"]] = KnownPod(pod, is_gone, self._tick)


class PodWatch:
    """Keeps a `PodTable` up to date from a thread of its own."""

    def __init__(self, api: KubernetesApi, selector: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._selector = selector
        self._clock = clock
        self._table = PodTable()
        # Entered instead of the condition, which an interrupt between two of its steps would leave locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closing = False
        self._stream: PodStream | None = None
        self._listed = False
        self._heard_at = clock()
        self.num_lists = 0
        self.error: ApiError | None = None
        self._thread = threading.Thread(target=self._run, name="ropewalk-kubernetes-watch", daemon=True)
        self._thread.start()

    def put(self, pod: Manifest) -> None:
        """Add a pod that was just created."""
        with self._lock:
            self._table.put(pod)

    def pods(self, timeout_s: float) -> dict[str, KnownPod]:
        """Return all pods ever seen, after waiting up to `timeout_s` seconds for the first list.

        Raises:
            ApiError: there is no list yet; the error says why.
        """

        def is_decided() -> bool:
            return self._listed or (self.error is not None and self.error.status in _HOPELESS)

        with self._lock:
            self._changed.wait_for(is_decided, timeout_s)
            if not self._listed:
                raise self.error or ApiError(f"no list of pods came within {timeout_s:g} s")
            return dict(self._table.pods)

    def last_known(self) -> dict[str, KnownPod]:
        """Return all pods seen so far."""
        with self._lock:
            return dict(self._table.pods)

    def wait(self, timeout_s: float) -> None:
        """Wait until something changes."""
        with self._lock:
            self._changed.wait(timeout_s)

    @property
    def age_s(self) -> float:
        """Seconds since the server was last known to answer; an open idle stream counts as an answer."""
        with self._lock:
            return 0.0 if self._stream is not None else self._clock() - self._heard_at

    def close(self) -> None:
        """End the thread and its connection. May be called twice."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
            if self._stream is not None:
                self._stream.interrupt()
        self._thread.join()

    def _run(self) -> None:
        version = ""
        pause_s = _FIRST_PAUSE_S
        while not self._closing:
            try:
                if not version:
                    version = self._list()
                version = self._follow(version)
                pause_s = _FIRST_PAUSE_S
            except _Broken as broken:
                pause_s = self._pause(broken, _FIRST_PAUSE_S if broken.progressed else pause_s)
                version = broken.version
            except Exception as error:  # such as an answer that no API server gives; the next `poll` reports it
                logger.exception("the watch of pods failed, and begins again")
                version = ""
                words = f"the watch of pods failed with {type(error).__name__}: {error}"
                pause_s = self._pause(self._broken(ApiError(words, status=_ODD), version), pause_s)

    def _pause(self, broken: _Broken, pause_s: float) -> float:
        """Wait before a list or a watch is tried again; returns how long to wait the next time."""
        error = broken.error
        logger.debug("the watch of pods is resumed", extra={"status": error.status, "why": str(error)})
        self._sleep(max(pause_s * random.uniform(0.5, 1), error.retry_after_s or 0))
        return min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _list(self) -> str:
        with self._lock:
            began = self._table.begin_list()
        try:
            listed = self._api.list_pods(self._selector)
        except ApiError as error:
            raise self._broken(error, "") from error
        with self._lock:
            self._table.relist(listed.pods, began)
            self._listed = True
            self.num_lists += 1
            self._heard()
        return listed.version

    def _follow(self, version: str) -> str:
        """Read one stream to its end; returns the version to continue from."""
        first = version
        try:
            stream = self._api.watch_pods(self._selector, version, _WATCH_S)
            with self._lock:
                if self._closing:
                    stream.interrupt()
                self._stream = stream
                self._heard()
            try:
                for event in stream:
                    version = self._take(event)
            finally:
                with self._lock:
                    self._stream = None
                    self._heard_at = self._clock()
        except ApiError as error:
            # The version is too old: missed changes cannot be sent any more, so everything is listed again.
            raise self._broken(error, "" if error.status == _GONE else version, progressed=version != first) from error
        return version

    def _take(self, event: Manifest) -> str:
        pod: Manifest = event["object"]
        if event["type"] == "ERROR":
            raise ApiError(
                str(pod.get("message") or pod), status=int(pod.get("code") or 500), reason=str(pod.get("reason") or "")
            )
        with self._lock:
            self._table.event(event["type"], pod)
            self._heard()
        return str(pod["metadata"]["resourceVersion"])

    def _heard(self) -> None:
        self._heard_at = self._clock()
        self.error = None
        self._changed.notify_all()

    def _broken(self, error: ApiError, version: str, progressed: bool = False) -> _Broken:
        with self._lock:
            self.error = error
            self._changed.notify_all()
        return _Broken(error, version, progressed)

    def _sleep(self, pause_s: float) -> None:
        with self._lock:
            self._changed.wait_for(lambda: self._closing, pause_s)


class _Broken(Exception):
    """A list or a watch failed; holds the version to continue from."""

    def __init__(self, error: ApiError, version: str, progressed: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.version = version
        self.progressed = progressed
