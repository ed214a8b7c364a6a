"""Every selector against a list that is searched from end to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.rl.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Selector, UniformSelector
from ropewalk.rl.replay.selectors.selector import SelectorState
from ropewalk.rl.seeds import generator


@dataclass
class Entry:
    key: int
    priority: float
    inserted: int
    changed: int


@dataclass
class PlainList:
    """Entries, searched by a rank: the least one is chosen."""

    rank: Callable[[Entry], tuple[float, ...]]
    entries: list[Entry] = field(default_factory=list)
    clock: int = 0

    def insert(self, key: int, priority: float) -> None:
        self.clock += 1
        self.entries.append(Entry(key, priority, self.clock, self.clock))

    def update(self, key: int, priority: float) -> None:
        self.clock += 1
        entry = next(entry for entry in self.entries if entry.key == key)
        entry.priority, entry.changed = priority, self.clock

    def delete(self, key: int) -> None:
        self.entries = [entry for entry in self.entries if entry.key != key]

    def ordered(self) -> list[int]:
        return [entry.key for entry in sorted(self.entries, key=self.rank)]


ORDERED: dict[str, tuple[Selector, Callable[[Entry], tuple[float, ...]]]] = {
    "fifo": (Fifo(), lambda entry: (entry.inserted,)),
    "lifo": (Lifo(), lambda entry: (-entry.inserted,)),
    "min": (MinHeap(), lambda entry: (entry.priority, entry.changed)),
    "max": (MaxHeap(), lambda entry: (-entry.priority, entry.changed)),
}
RANDOM: dict[str, tuple[Selector, Callable[[float], float]]] = {
    "uniform": (UniformSelector(), lambda priority: 1.0),
    "prioritized 0.6": (Prioritized(0.6), lambda priority: priority**0.6),
    "prioritized 0": (Prioritized(0.0), lambda priority: 1.0 if priority else 0.0),
    "prioritized 2, compiled": (Prioritized(2.0), lambda priority: priority**2),
}
EVERY = {name: selector for name, (selector, _) in [*ORDERED.items(), *RANDOM.items()]}
CHANGES = st.lists(
    st.tuples(st.sampled_from(["insert", "update", "delete"]), st.integers(1, 5), st.integers(0, 1 << 30)), max_size=60
)


def made(selector: Selector, name: str = "", seed: int = 0) -> SelectorState:
    return selector.make(generator(seed, "test"), 1 << 20 if "compiled" in name else 100)


def change(state: SelectorState, model: PlainList, kind: str, num: int, seed: int) -> None:
    """Do the same to both, with several keys at once; keys are used again as the positions of a table are."""
    rng = np.random.default_rng(seed)
    there = [entry.key for entry in model.entries]
    if kind == "insert":
        free = [key for key in range(len(there) + num) if key not in there]
        keys = rng.permutation(free)[:num]
    else:
        keys = rng.permutation(there)[:num].astype(np.int64)
    priorities = rng.integers(0, 4, len(keys)).astype(np.float64)
    if kind == "delete":
        state.delete(keys)
        for key in keys.tolist():
            model.delete(key)
        return
    getattr(state, kind)(keys, priorities)
    for key, priority in zip(keys.tolist(), priorities.tolist(), strict=True):
        getattr(model, kind)(key, priority)


@pytest.mark.parametrize("name", ORDERED)
@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_ordered_selectors_choose_as_a_sorted_list(name: str, changes: list[tuple[str, int, int]]) -> None:
    selector, rank = ORDERED[name]
    state, model = made(selector), PlainList(rank)
    for kind, num, seed in changes:
        change(state, model, kind, num, seed)
        if not model.entries:
            continue
        keys, probabilities = state.select(3)
        assert keys.tolist() == model.ordered()[:1] * 3 and probabilities.tolist() == [1.0] * 3
        limits = np.random.default_rng(seed).integers(1, 4, 400)
        once = [key for key in model.ordered() for _ in range(limits[key])]
        assert state.select(7, limits)[0].tolist() == once[:7]


@pytest.mark.parametrize("name", RANDOM)
@settings(max_examples=50, deadline=None)
@given(CHANGES)
def test_random_selectors_choose_keys_that_are_there_with_their_probability(
    name: str, changes: list[tuple[str, int, int]]
) -> None:
    selector, weight_of = RANDOM[name]
    state, model = made(selector, name), PlainList(lambda entry: (0,))
    for kind, num, seed in changes:
        change(state, model, kind, num, seed)
        if not model.entries:
            continue
        weights = {entry.key: weight_of(entry.priority) for entry in model.entries}
        if not sum(weights.values()):
            weights = dict.fromkeys(weights, 1.0)
        keys, probabilities = state.select(16)
        total = sum(weights.values())
        np.testing.assert_allclose(probabilities, [weights[key] / total for key in keys.tolist()], rtol=1e-12)
        assert (probabilities > 0).all()


@pytest.mark.parametrize("name", RANDOM)
def test_random_selectors_choose_as_often_as_their_probability_says(name: str) -> None:
    selector, weight_of = RANDOM[name]
    state = made(selector, name)
    priorities = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 0.25, 1.5])
    state.insert(np.arange(7), priorities)
    state.delete(np.array([1]))
    state.update(np.array([2, 4]), np.array([4.0, 0.5]))
    priorities[[2, 4]] = 4.0, 0.5
    weights = np.array([weight_of(priority) for priority in priorities.tolist()])
    weights[1] = 0
    expected = weights / weights.sum()
    num = 20_000
    # One by one, so that the draws are independent: batches are stratified.
    counts = np.bincount([state.select(1)[0][0] for _ in range(num)], minlength=7) / num
    assert np.all(np.abs(counts - expected) <= 5 * np.sqrt(expected * (1 - expected) / num))


@pytest.mark.parametrize("name", EVERY)
def test_selectors_repeat_from_their_seed_and_differ_for_another_one(name: str) -> None:
    def choices(seed: int) -> list[int]:
        state = made(EVERY[name], name, seed)
        state.insert(np.arange(50), np.arange(1.0, 51))
        return [key for _ in range(5) for key in state.select(8)[0].tolist()]

    assert choices(1) == choices(1)
    assert (choices(1) != choices(2)) is (name in RANDOM)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=50, deadline=None)
@given(CHANGES)
def test_a_restored_selector_goes_on_as_the_saved_one(name: str, changes: list[tuple[str, int, int]]) -> None:
    state, model = made(EVERY[name], name), PlainList(lambda entry: (entry.inserted,))
    change(state, model, "insert", 5, 0)
    for kind, num, seed in changes:
        change(state, model, kind, num, seed)
    change(state, model, "insert", 2, 1)
    state.select(3)
    restored = made(EVERY[name], name, seed=9)
    entries = sorted(model.entries, key=model.rank)
    keys, priorities = np.array([entry.key for entry in entries]), np.array([entry.priority for entry in entries])
    restored.load_state_dict(state.state_dict(), keys, priorities)
    again = PlainList(model.rank, list(model.entries), model.clock)
    for kind, num, seed in [("update", 2, 5), ("insert", 3, 6), ("delete", 2, 7)]:
        change(state, model, kind, num, seed)
        change(restored, again, kind, num, seed)
        for limits in (None, np.full(400, 2)):
            for chosen, expected in zip(restored.select(6, limits), state.select(6, limits), strict=True):
                np.testing.assert_array_equal(chosen, expected)


@pytest.mark.parametrize("name", EVERY)
def test_a_selector_takes_over_items_that_another_kind_saved(name: str) -> None:
    state = made(EVERY[name], name)
    state.load_state_dict({}, np.array([4, 2, 7]), np.array([1.0, 3.0, 2.0]))
    chosen = set(state.select(30, np.full(8, 30))[0].tolist())
    assert chosen == {"fifo": {4}, "lifo": {7}, "min": {4}, "max": {2}}.get(name, {2, 4, 7})


@pytest.mark.parametrize("name", EVERY)
def test_a_cleared_selector_starts_anew(name: str) -> None:
    state = made(EVERY[name], name)
    state.insert(np.arange(5), np.ones(5))
    state.clear()
    state.insert(np.array([3]), np.array([0.5]))
    keys, probabilities = state.select(4)
    assert keys.tolist() == [3] * 4 and probabilities.tolist() == [1.0] * 4


@pytest.mark.parametrize("name", RANDOM)
def test_no_item_is_drawn_beyond_its_limit(name: str) -> None:
    state = made(RANDOM[name][0], name)
    state.insert(np.arange(3), np.ones(3))
    limits = np.array([1, 2, 4])
    for _ in range(50):
        keys = state.select(8, limits)[0]
        assert 1 <= len(keys) <= 7 and np.all(np.bincount(keys, minlength=3) <= limits)


def test_the_line_of_a_fifo_does_not_grow_with_the_number_of_insertions() -> None:
    state: Any = made(Fifo())
    state.insert(np.arange(100), np.ones(100))
    for _ in range(1000):
        oldest = state.select(10, np.ones(200, np.int64))[0]
        state.delete(oldest)
        state.insert(oldest, np.ones(10))
    assert len(state._line) < 1000


@pytest.mark.parametrize("selector", [Fifo(), Lifo()], ids=str)
def test_entries_of_keys_that_left_are_passed_only_once(selector: Selector) -> None:
    """Otherwise each choice would search through all that left, up to half of a table."""
    state: Any = made(selector)
    state.insert(np.arange(100), np.ones(100))
    gone = np.arange(40) if isinstance(selector, Fifo) else np.arange(60, 100)
    state.delete(gone)
    assert state._first_entries(1).tolist() == [-1]
    state.select(1)
    expected = 40 if isinstance(selector, Fifo) else 59
    assert expected in state._first_entries(24).tolist()


def test_the_heap_does_not_grow_with_the_number_of_updates() -> None:
    state: Any = made(MinHeap())
    state.insert(np.arange(100), np.ones(100))
    for i in range(500):
        state.update(np.arange(50), np.full(50, float(i)))
    assert len(state._heap) <= 264
    assert state.select(1)[0].tolist() == [50]
