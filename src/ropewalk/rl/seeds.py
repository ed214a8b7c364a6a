"""Seeds and random generators that follow from the run's seed and from a path of names and numbers alone.

No generator has a state that has to be saved: the one for block 7 of group 2 is `generator(seed, "block", 2, 7)`, in
whatever process, after whatever deaths. Zeros at the end of a short path do not count: ("block",) and ("block", 0) are
one path, as numpy fills seeds up to four words with zeros.
"""

from __future__ import annotations

import zlib

import numpy as np

_WORD = 1 << 32
"""Numbers below this are one word of a seed."""


def derived_seed(seed: int, *path: int | str) -> int:
    """Return a seed below 2**31 for what lies at `path`; equal for equal arguments, independent otherwise."""
    return int(_sequence(seed, path).generate_state(1)[0]) >> 1


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """Return a new generator for what lies at `path`."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, path)))


def _sequence(seed: int, path: tuple[int | str, ...]) -> np.random.SeedSequence:
    words = [seed, *(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path)]
    if min(words) >= 0 and max(words) < _WORD:  # the same seed as that of the list, and cheaper
        return np.random.SeedSequence(np.array(words, np.uint32))
    return np.random.SeedSequence(words)  # which cuts larger numbers into words, and refuses negative ones


__all__ = ["derived_seed", "generator"]
