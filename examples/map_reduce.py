"""Count the words of Python's standard library with MapReduce.

    python examples/map_reduce.py

Dean, Ghemawat: MapReduce: Simplified Data Processing on Large Clusters, OSDI 2004.

    files ── any ──▶ mappers ── all pairs whose word hashes to i ──▶ reducers[i] ──▶ counts
                     combine: (the, 1), (the, 1), ... -> (the, 212)   (section 4.3)

A part is named by its file and is kept, not added, when it arrives: one that
arrives twice, as after a repeated map, counts once (section 3.3).
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import ropewalk as rw

MAPPERS, REDUCERS = 2, 3


def words(path: str) -> list[str]:
    return re.findall(r"[a-z]+", Path(path).read_text(encoding="utf-8").lower())


def partition(word: str, num_parts: int) -> int:
    """The reducer of a word. Not `hash()`: every process salts it anew, and mappers must agree."""
    return zlib.crc32(word.encode()) % num_parts


def texts(limit: int = 120) -> list[str]:
    """Real text that every machine with Python has: the modules of its standard library."""
    return [str(path) for path in sorted(Path(os.__file__).parent.glob("*.py"))[:limit]]


def count_here(paths: Iterable[str]) -> Counter[str]:
    """The same in one process and one line."""
    return Counter(word for path in paths for word in words(path))


class Mapper:
    """Counts the words of one file at a time and sends each count to its word's reducer."""

    def __init__(self, reducers: rw.Client) -> None:
        self._reducers = reducers  # of all replicas; `reducers[i]` is the client of one

    @rw.idempotent  # a file whose mapper dies may go to another one
    def map(self, path: str) -> tuple[int, int]:
        """Returns how many words were read, and how many pairs were sent for them."""
        found = words(path)
        parts = [Counter[str]() for _ in range(len(self._reducers))]
        combined = Counter(found)  # the combiner: one pair per word of the file, not one per occurrence
        for word, count in combined.items():
            parts[partition(word, len(parts))][word] = count
        sending = [self._reducers[i].keep.future(path, part) for i, part in enumerate(parts)]
        for sent in sending:
            sent.result()
        return len(found), sum(map(len, parts))


class Reducer:
    """Holds the part of every file whose words belong to it."""

    def __init__(self) -> None:
        self._parts: dict[str, Counter[str]] = {}

    @rw.idempotent
    def keep(self, path: str, part: Counter[str]) -> None:
        self._parts[path] = part

    def reduce(self) -> Counter[str]:
        total = Counter[str]()
        for part in self._parts.values():
            total.update(part)
        return total


def main(mode: rw.Mode | None = None) -> Counter[str]:
    program = rw.Program("map-reduce")
    reducers = program.add(rw.Service(Reducer), name="reducers", replicas=REDUCERS)
    program.add(rw.Service(Mapper, reducers), name="mappers", replicas=MAPPERS)

    paths = texts()
    with program.launch(mode=mode) as running:
        mappers = running.client("mappers").any  # whichever has least to do
        mapped = [future.result() for future in [mappers.map.future(path) for path in paths]]
        parts: list[Counter[str]] = running.client("reducers").all.reduce()

    counts = sum(parts, Counter[str]())
    assert counts == count_here(paths), "distributed and single counts differ"
    num_words, num_pairs = (sum(column) for column in zip(*mapped, strict=True))
    print(f"{len(paths)} files, {num_words} words, {len(counts)} of them different; the same as counted in one process")
    print(f"the combiner sent {num_pairs} pairs in place of {num_words}; per reducer: {[len(part) for part in parts]}")
    print("most frequent:", ", ".join(f"{word} {count}" for word, count in counts.most_common(5)))
    return counts


if __name__ == "__main__":
    main()
