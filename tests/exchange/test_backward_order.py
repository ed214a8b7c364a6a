"""Buckets go when they are full, in one order on every member."""

from __future__ import annotations

import random

import pytest

from ropewalk.exchange.backward_order import BackwardOrder
from ropewalk.exchange.buckets import BucketEntry, Layout

LAYOUTS = [Layout(tuple(BucketEntry(name, (1,)) for name in names)) for names in ("f", "ed", "cba")]


def test_a_full_bucket_waits_for_those_before_it() -> None:
    order = BackwardOrder(LAYOUTS)
    assert [order.ready(name) for name in "edcbfa"] == [[], [], [], [], [0, 1], [2]]
    assert order.rest() == []


def test_any_order_of_gradients_gives_each_bucket_once_and_in_turn() -> None:
    for seed in range(50):
        names = random.Random(seed).sample("abcdef", 6)
        order = BackwardOrder(LAYOUTS)
        assert [index for name in names for index in order.ready(name)] == [0, 1, 2]


def test_the_rest_says_what_is_missing() -> None:
    order = BackwardOrder(LAYOUTS)
    order.ready("e")
    order.ready("c")
    assert order.rest() == [(0, {"f"}), (1, {"d"}), (2, {"b", "a"})]


def test_a_gradient_that_is_ready_twice_is_refused() -> None:
    order = BackwardOrder(LAYOUTS)
    order.ready("f")
    with pytest.raises(RuntimeError, match="no_sync"):
        order.ready("f")
