"""Buckets that come and go, and state that stays with its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ropewalk.exchange.bucket_store import BucketStore, State
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.open_step import Bucket


class Keeper:
    """Keeps one number for each parameter, and how many buckets it prepared and discarded."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self.prepared: list[int] = []
        self.discarded: list[int] = []

    def prepare(self, bucket: Bucket) -> None:
        self.prepared.append(bucket.index)
        self.kept |= dict.fromkeys(bucket.layout.names, 0)

    def discard(self, bucket: Bucket) -> None:
        self.discarded.append(bucket.index)
        for name in bucket.layout.names:
            del self.kept[name]

    def bucket_state(self, bucket: Bucket) -> State:
        return {"number": {name: self.kept[name] for name in bucket.layout.names}, "common": 7}

    def load_bucket_state(self, bucket: Bucket, state: State) -> None:
        numbers: dict[str, Any] = state["number"]
        self.kept |= {name: numbers[name] for name in bucket.layout.names if name in numbers}


def layout(*names: str) -> Layout:
    return Layout(tuple(BucketEntry(name, (2,), torch.float32, "cpu") for name in names))


def store_of(*layouts: Layout) -> tuple[BucketStore, Keeper]:
    keeper = Keeper()
    store = BucketStore(keeper)
    store.plan(layouts)
    store.make()
    return store, keeper


def test_buckets_are_made_once_and_are_found_by_parameter() -> None:
    store, keeper = store_of(layout("a", "b"), layout("c"))
    store.make()
    assert keeper.prepared == [0, 1] and len(store) == 2
    assert store.of("b") is store[0] and store.of("c") is store[1]
    with pytest.raises(KeyError, match="no parameter 'd' is bound; bound are a, b, c"):
        store.of("d")


def test_state_goes_by_name_to_other_buckets() -> None:
    store, keeper = store_of(layout("a", "b"), layout("c"))
    keeper.kept = {"a": 1, "b": 2, "c": 3}
    store.plan([layout("a"), layout("c", "b")])
    assert keeper.kept == {} and keeper.discarded == [0, 1]
    assert store.state() == {"number": {"a": 1, "b": 2, "c": 3}, "common": 7}
    store.make()
    assert keeper.kept == {"a": 1, "b": 2, "c": 3} and store.layouts == (layout("a"), layout("c", "b"))


def test_buckets_from_one_on_are_dropped_and_their_state_is_carried_to_those_that_are_added() -> None:
    store, keeper = store_of(layout("a"), layout("b", "c"))
    keeper.kept = {"a": 1, "b": 2, "c": 3}
    store.drop(1)
    assert keeper.discarded == [1] and len(store) == 1
    store.add(1, layout("c"), torch.zeros(2))
    store.add(2, layout("b"), torch.zeros(2))
    assert keeper.kept == {"a": 1, "b": 2, "c": 3} and store.of("b") is store[2]


def test_a_state_that_is_loaded_reaches_buckets_that_are_not_made_yet() -> None:
    keeper = Keeper()
    store = BucketStore(keeper)
    store.plan([layout("a")])
    store.load({"number": {"a": 5}})
    store.make()
    assert keeper.kept == {"a": 5}


def test_what_was_carried_is_forgotten_when_a_step_is_done() -> None:
    store, keeper = store_of(layout("a"))
    keeper.kept["a"] = 4
    store.drop()
    store.forget_carried()
    store.make()
    assert keeper.kept == {"a": 0}


def test_views_that_were_being_made_when_the_memory_was_replaced_are_of_the_new_memory() -> None:
    """An abort by another thread came between: all later gradients were copied to the old memory, and zeros sent."""

    class Slow(Layout):
        def views(self, flat: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
            if flat is old:
                bucket.replace_flat(torch.zeros(4))
            return super().views(flat)

    old = torch.zeros(4)
    bucket = Bucket(0, Slow(layout("a", "b").entries), old)
    bucket.views["a"].fill_(1.0)  # of a step that is being taken back
    bucket.views["b"].fill_(2.0)
    assert bucket.flat.tolist() == [0.0, 0.0, 2.0, 2.0]
