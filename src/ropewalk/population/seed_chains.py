"""Genomes as chains of seeds: the parameters are the start plus one draw of noise for each ancestor.

Such, Madhavan, Conti, Lehman, Stanley, Clune: Deep Neuroevolution, 2017 (https://arxiv.org/abs/1712.06567), section 3,
equations 1 and 2. As there, a seed is an index into a noise table. Chains that share ancestors are stored, and sent, as
one tree that holds each ancestor once; ancestors that no living genome needs are removed.

    launcher   SeedLineage  node ─▶ (parent, index, sigma)        grows by the parents of each generation
                  │ pack(living)
                  ▼
    wire       PackedChains: arrays of parents, indices, sigmas, 16 bytes for each node; digests of the youngest
                  │ decode(position)
                  ▼
    worker     start + sigma·noise[index] + sigma·noise[index] + …, from the nearest ancestor in this process's cache

Additions are done one after the other, from the start to the child, in float32. The value of an ancestor is a partial
sum in exactly this order, so the result is bit-identical whether or not an ancestor was in the cache. The digest of a
node is the hash of everything that determines its value, so one cache can serve any number of runs in a process.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.parameter_cache import ParameterCache
from ropewalk.population.perturbed import start_parameters
from ropewalk.population.weighted_sum import Vector

Start = NDArray[np.floating] | int | Callable[[], NDArray[np.floating]]
"""The start of all chains: an array; a number of parameters, all 0; or a picklable function that returns the array."""

ROOT = -1
"""The number of the root node, which is the start itself."""
_DIGEST_BYTES = 16
_YOUNG = 256
"""Number of the youngest nodes whose digests are sent; older nodes are never found in a cache, but few are that old."""
_LINK = struct.Struct("<qf")


def made(start: Start) -> Vector:
    """Return the start as a vector: float32 of shape (dim,), read-only.

    Raises:
        ValueError: the start is not a vector, is empty, or is not finite.
    """
    return start_parameters(start() if callable(start) else start)


def mutated(parameters: Vector, noise: NoiseTable, index: int, sigma: float) -> Vector:
    """Return the parameters of a child: one more link of the chain.

    Args:
        parameters: the parent, float32 of shape (dim,).
        noise: the noise table.
        index: index of the draw in the table.
        sigma: factor of the draw.
    """
    child = np.multiply(noise.slice(index, parameters.size), np.float32(sigma), dtype=np.float32)
    return np.add(child, parameters, out=child)


@dataclass(frozen=True, slots=True)
class SeedChain:
    """A genome on its own, for storage: a few bytes for each ancestor."""

    indices: tuple[int, ...]
    """Index of the draw of each link in the noise table, oldest first."""
    sigmas: tuple[float, ...]
    """Factor of the draw of each link, oldest first."""

    def decode(self, start: Start, noise: NoiseTable) -> Vector:
        """Return the parameters: float32 of shape (dim,)."""
        parameters = made(start)
        for index, sigma in zip(self.indices, self.sigmas, strict=True):
            parameters = mutated(parameters, noise, index, sigma)
        return parameters


@dataclass(frozen=True, slots=True)
class _Node:
    parent: int
    index: int
    sigma: float
    depth: int
    digest: bytes


class SeedLineage:
    """The living genomes and their ancestors, on the launcher.

    Args:
        start: the start of all chains.
        noise: the noise table of the links.
    """

    def __init__(self, start: Start, noise: NoiseTable) -> None:
        self._start, self._noise = start, noise
        parameters = made(start)
        self.dim = parameters.size
        facts = f"{noise.size} {noise.seed} {self.dim}".encode()
        self.root_digest = hashlib.blake2b(facts + parameters.tobytes(), digest_size=_DIGEST_BYTES).digest()
        self._nodes: dict[int, _Node] = {}  # by number, oldest first: parents come before their children
        self._next = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, parent: int, index: int, sigma: float) -> int:
        """Add a node and return its number; numbers only increase."""
        above = self.root_digest if parent == ROOT else self._nodes[parent].digest
        sigma = float(np.float32(sigma))  # as it is sent
        digest = hashlib.blake2b(above + _LINK.pack(index, sigma), digest_size=_DIGEST_BYTES).digest()
        self._nodes[self._next] = _Node(parent, index, sigma, self.depth(parent) + 1, digest)
        self._next += 1
        return self._next - 1

    def keep(self, living: Iterable[int]) -> None:
        """Remove all nodes except these and their ancestors."""
        self._nodes = self._with_ancestors(living)

    def chain(self, node: int) -> SeedChain:
        """Return the genome of a node."""
        links: list[_Node] = []
        while node != ROOT:
            links.append(self._nodes[node])
            node = links[-1].parent
        return SeedChain(tuple(link.index for link in reversed(links)), tuple(link.sigma for link in reversed(links)))

    def depth(self, node: int) -> int:
        """Return the number of links in the chain of a node."""
        return 0 if node == ROOT else self._nodes[node].depth

    def pack(self, living: Iterable[int], cache_bytes: int) -> tuple[PackedChains, dict[int, int]]:
        """Pack nodes and their ancestors for the workers.

        Args:
            living: numbers of the nodes.
            cache_bytes: limit for the cache of parameters in each worker, in bytes.

        Returns:
            The packed nodes, and the position of each living node in them, by its number.
        """
        nodes = self._with_ancestors(living)
        positions = {ROOT: ROOT} | {number: position for position, number in enumerate(nodes)}
        packed = PackedChains(
            self._start,
            self._noise,
            self.dim,
            np.array([positions[node.parent] for node in nodes.values()], np.int32),
            np.array([node.index for node in nodes.values()], np.int64),
            np.array([node.sigma for node in nodes.values()], np.float32),
            self.root_digest,
            b"".join(node.digest for node in list(nodes.values())[-_YOUNG:]),
            cache_bytes,
        )
        return packed, positions

    def _with_ancestors(self, living: Iterable[int]) -> dict[int, _Node]:
        needed: set[int] = set()
        for node in living:
            while node != ROOT and node not in needed:
                needed.add(node)
                node = self._nodes[node].parent
        return {number: self._nodes[number] for number in sorted(needed)}

    def state_dict(self) -> dict[str, Any]:
        """Return the nodes, as arrays."""
        nodes = self._nodes.values()
        return {
            "start": self.root_digest.hex(),
            "next": self._next,
            "numbers": np.array(list(self._nodes), np.int64),
            "parents": np.array([node.parent for node in nodes], np.int64),
            "indices": np.array([node.index for node in nodes], np.int64),
            "sigmas": np.array([node.sigma for node in nodes], np.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`.

        Raises:
            ValueError: its chains have another start, or use another noise table.
        """
        if state["start"] != self.root_digest.hex():
            raise ValueError(
                f"the saved genomes begin with other parameters or draw from another noise table than these "
                f"({self.dim} parameters, {self._noise}): digest {state['start']}, here {self.root_digest.hex()}; "
                "construct the algorithm with the arguments of the run that was saved"
            )
        self._nodes = {}
        columns = [np.asarray(state[name]).tolist() for name in ("numbers", "parents", "indices", "sigmas")]
        for number, parent, index, sigma in zip(*columns, strict=True):
            self._next = number
            self.add(parent, index, sigma)
        self._next = int(state["next"])


@dataclass(slots=True)
class PackedChains:
    """A `SeedLineage` as it is sent to the workers and used there."""

    start: Start
    noise: NoiseTable
    dim: int
    """Number of parameters."""
    parents: NDArray[np.int32]
    """Position of the parent of each node, int32 of shape (nodes,); it is smaller than the node's own position."""
    indices: NDArray[np.int64]
    sigmas: NDArray[np.float32]
    root_digest: bytes
    young_digests: bytes
    """Digests of the last nodes."""
    cache_bytes: int
    """Limit for the cache of parameters in a worker, in bytes."""

    def decode(self, position: int) -> Vector:
        """Return the parameters of the node at a position: float32 of shape (dim,), read-only.

        The result is bit-identical whatever the cache holds.
        """
        path: list[int] = []
        at = position
        while (parameters := _CACHE.get(self._digest(at))) is None and at != ROOT:
            path.append(at)
            at = int(self.parents[at])
        if parameters is None:
            parameters = self._keep(ROOT, made(self.start))
        for at in reversed(path):
            parameters = mutated(parameters, self.noise, int(self.indices[at]), float(self.sigmas[at]))
            # Only nodes at which chains branch are cached, because other children start there; nodes between are not
            # worth it.
            if at == position or self._branches(at):
                self._keep(at, parameters)
        parameters.flags.writeable = False
        return parameters

    def _digest(self, position: int) -> bytes | None:
        if position == ROOT:
            return self.root_digest
        offset = position * _DIGEST_BYTES - (len(self.parents) * _DIGEST_BYTES - len(self.young_digests))
        return self.young_digests[offset : offset + _DIGEST_BYTES] if offset >= 0 else None

    def _branches(self, position: int) -> bool:
        return int(np.count_nonzero(self.parents[position + 1 :] == position)) > 1

    def _keep(self, position: int, parameters: Vector) -> Vector:
        digest = self._digest(position)
        if digest:
            parameters.flags.writeable = False
            _CACHE.put(digest, parameters, self.cache_bytes)
        return parameters


_CACHE = ParameterCache()
"""The cache of this process."""
