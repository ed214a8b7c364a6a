from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.population import seed_chains
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.parameter_cache import ParameterCache
from ropewalk.population.seed_chains import ROOT, SeedLineage, Start

DIM = 7
NOISE = NoiseTable(1 << 10, seed=3)
AMPLE = 1 << 20


@pytest.fixture(autouse=True)
def cache() -> Iterator[ParameterCache]:
    seed_chains._CACHE.clear()
    yield seed_chains._CACHE
    seed_chains._CACHE.clear()


def line(lineage: SeedLineage, length: int, parent: int = ROOT) -> int:
    for number in range(length):
        parent = lineage.add(parent, NOISE.index(parent + 1, number, DIM), 0.1 + number / 100)
    return parent


@settings(deadline=None, max_examples=60)
@given(
    links=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1000), st.floats(0.001, 10)), min_size=1, max_size=30),
    order=st.lists(st.integers(0, 29), max_size=40),
    cache_bytes=st.sampled_from([0, DIM * 4, 5 * DIM * 4, AMPLE]),
)
def test_parameters_are_the_same_bits_whatever_the_cache_holds(
    links: list[tuple[int, int, float]], order: list[int], cache_bytes: int
) -> None:
    seed_chains._CACHE.clear()
    start = np.linspace(-1, 1, DIM)
    lineage = SeedLineage(start, NOISE)
    for parent, index, sigma in links:
        lineage.add(min(parent, len(lineage)) - 1, index, sigma)
    packed, position_of = pickle.loads(pickle.dumps(lineage.pack(range(len(lineage)), cache_bytes)))
    for node in [at % len(links) for at in order]:
        parameters = packed.decode(position_of[node])
        assert parameters.tobytes() == lineage.chain(node).decode(start, NOISE).tobytes()
        assert seed_chains._CACHE.size_bytes <= cache_bytes


def test_what_is_decoded_is_read_only_and_of_float32(cache: ParameterCache) -> None:
    lineage = SeedLineage(DIM, NOISE)
    packed, position_of = lineage.pack([line(lineage, 3)], AMPLE)
    for position in (ROOT, *position_of.values()):
        parameters = packed.decode(position)
        assert parameters.dtype == np.float32
        assert not parameters.flags.writeable


def test_a_child_of_a_cached_parent_costs_one_link(cache: ParameterCache, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = SeedLineage(DIM, NOISE)
    parent = line(lineage, 50)
    child = lineage.add(parent, 4, 0.5)
    packed, position_of = lineage.pack([parent, child], AMPLE)
    packed.decode(position_of[parent])
    links: list[int] = []
    monkeypatch.setattr(NoiseTable, "slice", lambda self, index, dim: links.append(index) or self.array[:dim])
    packed.decode(position_of[child])
    assert links == [4]


def test_where_lines_part_the_parameters_are_kept_and_between_not(cache: ParameterCache) -> None:
    lineage = SeedLineage(DIM, NOISE)
    fork = line(lineage, 20)
    left, right = line(lineage, 3, fork), line(lineage, 3, fork)
    packed, position_of = lineage.pack([left, right], AMPLE)
    packed.decode(position_of[left])
    assert len(cache) == 3  # the start, the fork, and the one asked for
    assert cache.get(lineage._nodes[fork].digest) is not None


def test_runs_that_differ_in_anything_share_no_parameters_in_a_process(cache: ParameterCache) -> None:
    starts: list[Start] = [DIM, np.ones(DIM), np.ones(DIM) * 2]
    for start in starts:
        for noise in (NOISE, NoiseTable(1 << 10, seed=4), NoiseTable(1 << 11, seed=3)):
            for sigma in (0.1, 0.2):
                lineage = SeedLineage(start, noise)
                node = lineage.add(lineage.add(ROOT, 1, sigma), 2, 0.1)
                packed, position_of = lineage.pack([node], AMPLE)
                expected = lineage.chain(node).decode(start, noise)
                assert packed.decode(position_of[node]).tobytes() == expected.tobytes()


def test_a_start_may_be_a_function_that_the_workers_call(cache: ParameterCache) -> None:
    lineage = SeedLineage(ones, NOISE)
    packed, _ = lineage.pack([line(lineage, 1)], AMPLE)
    data = pickle.dumps(packed)
    assert len(data) < len(pickle.dumps(SeedLineage(ones(), NOISE).pack([], AMPLE)[0]))
    assert np.array_equal(pickle.loads(data).decode(ROOT), np.ones(1000))


def ones() -> np.ndarray:
    return np.ones(1000)


def test_ancestors_of_the_dead_are_forgotten(cache: ParameterCache) -> None:
    lineage = SeedLineage(DIM, NOISE)
    trunk = line(lineage, 10)
    dead, alive = line(lineage, 5, trunk), line(lineage, 2, trunk)
    before = lineage.chain(alive)
    lineage.keep([alive])
    assert len(lineage) == 12
    assert lineage.chain(alive) == before
    assert lineage.depth(alive) == 12
    with pytest.raises(KeyError):
        lineage.chain(dead)


def test_chains_of_1000_links_travel_as_one_tree_of_20_kilobytes(cache: ParameterCache) -> None:
    lineage = SeedLineage(DIM, NOISE)
    trunk = line(lineage, 980)
    parents = [line(lineage, 20, trunk) for _ in range(20)]
    packed, _ = lineage.pack(parents, AMPLE)
    assert len(pickle.dumps(packed)) < 30_000  # one by one they are 20 × 1,000 links of 12 bytes
    assert len(packed.parents) == 980 + 400


def test_a_lineage_that_is_loaded_goes_on_as_the_saved_one(cache: ParameterCache) -> None:
    lineage = SeedLineage(DIM, NOISE)
    alive = line(lineage, 4, line(lineage, 6))
    lineage.keep([alive])
    copy = SeedLineage(DIM, NOISE)
    copy.load_state_dict(lineage.state_dict())
    assert copy.chain(alive) == lineage.chain(alive)
    assert copy.add(alive, 1, 0.5) == lineage.add(alive, 1, 0.5)
    assert copy._nodes == lineage._nodes


def test_a_state_of_another_start_or_table_is_refused(cache: ParameterCache) -> None:
    state = SeedLineage(DIM, NOISE).state_dict()
    for other in (
        SeedLineage(DIM + 1, NOISE),
        SeedLineage(DIM, NoiseTable(1 << 10, seed=9)),
        SeedLineage(np.ones(DIM), NOISE),
    ):
        with pytest.raises(ValueError, match="begin with other parameters or draw from another noise table"):
            other.load_state_dict(state)
