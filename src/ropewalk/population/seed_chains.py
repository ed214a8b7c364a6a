"""Genomes as chains of seeds: parameters are the start plus one draw of noise for each ancestor.

Such, Madhavan, Conti, Lehman, Stanley, Clune: Deep Neuroevolution, 2017 (https://arxiv.org/abs/1712.06567), section 3,
equations 1 and 2. As there, a seed is an index into a noise table. Chains that share ancestors are kept, and sent, as
one tree in which each ancestor lies once; ancestors that no living genome needs are forgotten.

    launcher   SeedLineage  node ─▶ (parent, index, sigma)        grows by the parents of each generation
                  │ pack(living)
                  ▼
    wire       PackedChains: arrays of parents, indices, sigmas, 16 bytes for each node; digests of the youngest
                  │ decode(position)
                  ▼
    worker     start + sigma·noise[index] + sigma·noise[index] + …, from the nearest ancestor in this process's cache

Additions are made one after the other, from the start to the child, in float32. The value of an ancestor is a partial
sum of just this order, so the bits are the same whether an ancestor was in the cache or not. The digest of a node is
the hash of everything that decides its value, so a cache can serve any number of runs in one process.
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

#: What chains begin with: an array; the number of parameters, which are 0 then; or a picklable function that makes it.
Start = NDArray[np.floating] | int | Callable[[], NDArray[np.floating]]

#: The node that is the start itself.
ROOT = -1
_DIGEST_BYTES = 16
#: Digests of this many nodes travel; a worker finds older ones in no cache, but hardly any is that old.
_YOUNG = 256
_LINK = struct.Struct("<qf")


def made(start: Start) -> Vector:
    """The start as a vector, read-only.

    Raises:
        ValueError: it is no vector, of no length, or not finite.
    """
    return start_parameters(start() if callable(start) else start)


def mutated(parameters: Vector, noise: NoiseTable, index: int, sigma: float) -> Vector:
    """A child of these parameters: one link more."""
    child = np.multiply(noise.slice(index, parameters.size), np.float32(sigma), dtype=np.float32)
    return np.add(child, parameters, out=child)


@dataclass(frozen=True, slots=True)
class SeedChain:
    """A genome by itself: what is written down of it, a few bytes for each ancestor."""

    indices: tuple[int, ...]
    """Where in the noise table the draw of each link begins, oldest first."""
    sigmas: tuple[float, ...]
    """What each draw is multiplied with."""

    def decode(self, start: Start, noise: NoiseTable) -> Vector:
        """The parameters."""
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
    """The ancestors of the living, at the launcher.

    Args:
        start: what all chains begin with.
        noise: what the links draw from.
    """

    def __init__(self, start: Start, noise: NoiseTable) -> None:
        self._start, self._noise = start, noise
        parameters = made(start)
        self.dim = parameters.size
        facts = f"{noise.size} {noise.seed} {self.dim}".encode()
        self.root_digest = hashlib.blake2b(facts + parameters.tobytes(), digest_size=_DIGEST_BYTES).digest()
        self._nodes: dict[int, _Node] = {}  # by number, oldest first: a parent lies before its children
        self._next = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, parent: int, index: int, sigma: float) -> int:
        """The number of a new node; numbers only grow."""
        above = self.root_digest if parent == ROOT else self._nodes[parent].digest
        sigma = float(np.float32(sigma))  # as it travels
        digest = hashlib.blake2b(above + _LINK.pack(index, sigma), digest_size=_DIGEST_BYTES).digest()
        self._nodes[self._next] = _Node(parent, index, sigma, self.depth(parent) + 1, digest)
        self._next += 1
        return self._next - 1

    def keep(self, living: Iterable[int]) -> None:
        """Forget all but these nodes and their ancestors."""
        self._nodes = self._with_ancestors(living)

    def chain(self, node: int) -> SeedChain:
        """The genome of a node."""
        links: list[_Node] = []
        while node != ROOT:
            links.append(self._nodes[node])
            node = links[-1].parent
        return SeedChain(tuple(link.index for link in reversed(links)), tuple(link.sigma for link in reversed(links)))

    def depth(self, node: int) -> int:
        """How many links the chain of a node has."""
        return 0 if node == ROOT else self._nodes[node].depth

    def pack(self, living: Iterable[int], cache_bytes: int) -> tuple[PackedChains, dict[int, int]]:
        """These nodes and their ancestors for the workers, and the position of each in what is packed."""
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
        """The nodes, as arrays."""
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
        """Become what `state_dict` was taken from.

        Raises:
            ValueError: its chains begin with other parameters, or draw from another noise table.
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
    """A `SeedLineage` on its way to the workers, and there."""

    start: Start
    noise: NoiseTable
    dim: int
    """The number of parameters."""
    parents: NDArray[np.int32]
    """Position of the parent of each node; it is smaller than the node's own."""
    indices: NDArray[np.int64]
    sigmas: NDArray[np.float32]
    root_digest: bytes
    young_digests: bytes
    """Of the last nodes."""
    cache_bytes: int
    """What the cache of a worker may hold of parameters, in bytes."""

    def decode(self, position: int) -> Vector:
        """The parameters of the node at a position, read-only; the same bits whatever is in the cache."""
        path: list[int] = []
        at = position
        while (parameters := _CACHE.get(self._digest(at))) is None and at != ROOT:
            path.append(at)
            at = int(self.parents[at])
        if parameters is None:
            parameters = self._keep(ROOT, made(self.start))
        for at in reversed(path):
            parameters = mutated(parameters, self.noise, int(self.indices[at]), float(self.sigmas[at]))
            # Where lines part, the other children will begin; what lies between is not worth its memory.
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
"""Of this process."""
