"""A cache of parameters in a process, with a limit in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ropewalk.population.weighted_sum import Vector


class ParameterCache:
    """Parameters by digest, with eviction of the least recently used."""

    def __init__(self) -> None:
        self._vectors: OrderedDict[bytes, Vector] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._vectors)

    def get(self, digest: bytes | None) -> Vector | None:
        """Return the parameters with this digest, or None."""
        with self._lock:
            if digest is None or digest not in self._vectors:
                return None
            self._vectors.move_to_end(digest)
            return self._vectors[digest]

    def put(self, digest: bytes, parameters: Vector, most_bytes: int) -> None:
        """Store parameters, unless they alone exceed `most_bytes`, and evict others to stay within it."""
        with self._lock:
            if digest not in self._vectors and parameters.nbytes <= most_bytes:
                self._vectors[digest] = parameters
                self.size_bytes += parameters.nbytes
            while self.size_bytes > most_bytes:
                self.size_bytes -= self._vectors.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._vectors.clear()
            self.size_bytes = 0
