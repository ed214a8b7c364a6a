"""Answers that nobody will change any more: pickled once, and one memory for all callers of a host."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.calls.frozen import Frozen
from ropewalk.calls.markers import concurrent
from tests.calls.ends import End

WORDS = 1 << 20


class Counted:
    """Counts how often it is pickled."""

    def __init__(self, words: int) -> None:
        self.num_pickled = 0
        self.array = np.arange(words)

    def __reduce__(self) -> Any:
        self.num_pickled += 1
        return np.asarray, (self.array,)


class Weights:
    def __init__(self, words: int = WORDS) -> None:
        self.counted = Counted(words)
        self.published = Frozen(self.counted)

    def published_weights(self) -> Any:
        return self.published

    @concurrent(4)
    def beside(self) -> Any:
        return self.published

    def versions(self) -> Any:
        for _ in range(3):
            yield self.published


def memory_of(array: np.ndarray) -> str:
    """The inode of the memory file in which it lies."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(word, 16) for word in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[4]
    raise AssertionError("it lies nowhere")


def test_all_callers_get_the_value_of_a_frozen_answer_in_the_same_memory(end: End) -> None:
    weights = Weights()
    end.serve(weights, "weights")
    client = end.client("weights", Weights)
    answers = [client.published_weights(), client.beside.future().result(120), *client.versions()]
    assert all(np.array_equal(answer, np.arange(WORDS)) for answer in answers)
    assert len({memory_of(answer) for answer in answers} - {"0"}) == 1
    assert weights.counted.num_pickled == 1


def test_who_writes_to_it_has_a_copy_of_its_own(end: End) -> None:
    weights = Weights()
    end.serve(weights, "weights")
    client = end.client("weights", Weights)
    mine, other = client.published_weights(), client.published_weights()
    mine[:] = -1
    assert np.array_equal(other, np.arange(WORDS)) and np.array_equal(client.published_weights(), np.arange(WORDS))
    assert np.array_equal(weights.counted.array, np.arange(WORDS))


def test_a_small_frozen_answer_is_pickled_once_as_well(end: End) -> None:
    weights = Weights(words=10)
    end.serve(weights, "weights")
    client = end.client("weights", Weights)
    answers = [client.published_weights() for _ in range(3)]
    answers[0][:] = -1
    assert [list(answer) for answer in answers[1:]] == [list(range(10))] * 2
    assert weights.counted.num_pickled == 1


def test_a_call_that_is_repeated_is_answered_with_a_frozen_value_too(end: End) -> None:
    end.serve(Weights(), "weights")
    client = end.client("weights", Weights, retries=True)
    assert np.array_equal(client.published_weights(), np.arange(WORDS))


def test_where_descriptors_are_scarce_none_is_kept_for_it(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.calls.payloads.descriptors_are_scarce", lambda _fd: True)
    weights = Weights()
    end.serve(weights, "weights")
    client = end.client("weights", Weights)
    answers = [client.published_weights() for _ in range(2)]
    assert all(np.array_equal(answer, np.arange(WORDS)) for answer in answers)
    assert weights.published.packed is None and weights.counted.num_pickled == 2


def test_its_memory_goes_with_it(end: End) -> None:
    weights = Weights()
    end.serve(weights, "weights")
    end.client("weights", Weights).published_weights()
    (fd,) = weights.published.packed.fds
    weights.published = Frozen(weights.counted)  # a new version
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_inside_other_values_it_travels_as_it_is() -> None:
    assert pickle.loads(pickle.dumps([Frozen(1)]))[0].value == 1


class Taker:
    def take(self, weights: Any, *, scale: int = 1) -> str:
        self.weights = weights
        return memory_of(weights)

    def sum(self) -> int:
        return int(self.weights.sum())


@pytest.mark.parametrize("words", [10, WORDS])
def test_a_call_of_all_replicas_packs_its_arguments_once_and_each_may_write_to_them(end: End, words: int) -> None:
    # `client.all.load(weights)` made a copy for each of them.
    takers = [Taker() for _ in range(3)]
    for replica, taker in enumerate(takers):
        end.serve(taker, "taker", replica)
    client, weights = end.client("taker", Taker).all, Counted(words)
    memory = client.take(weights, scale=2)
    assert weights.num_pickled == 1
    if words == WORDS:
        assert len(set(memory) - {"0"}) == 1
    takers[0].weights[:] = 0
    assert client.sum() == [0] + [sum(range(words))] * 2
    client.take.send(weights)
    assert client.sum() == [sum(range(words))] * 3 and weights.num_pickled == 2


class Server:
    def __init__(self, make: Callable[[np.ndarray], Any]) -> None:
        self.made = make(np.ones(2 << 20))  # 16 MiB

    def weights(self) -> Any:
        return self.made


class Actor:
    def __init__(self, server: Server) -> None:
        self.server = server

    def pull(self) -> float:
        self.weights: np.ndarray = self.server.weights()
        return float(self.weights.sum())

    def weights_bytes(self) -> tuple[int, int]:
        """What this process has of the memory of its weights: its share of it, and what it has for itself alone."""
        address, here = self.weights.__array_interface__["data"][0], False
        found = {"Pss": 0, "Private_Dirty": 0, "Private_Clean": 0}
        for line in Path("/proc/self/smaps").read_text().splitlines():
            name, *words = line.split()
            if "-" in name and not name.endswith(":"):
                first, last = (int(word, 16) for word in name.split("-"))
                here = first <= address < last
            elif here and name[:-1] in found:
                found[name[:-1]] += int(words[0]) << 10
        return found["Pss"], found["Private_Dirty"] + found["Private_Clean"]


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("way", ["frozen", "cached", "plain"])
def test_actors_of_one_host_share_the_memory_of_weights_that_they_pull(way: str) -> None:
    program = rw.Program("actors")
    server = program.add(rw.Service(Server, rw.Frozen if way == "frozen" else np.copy))
    target = program.add(rw.Cache(server, ttl_s=600.0)) if way == "cached" else server
    program.add(rw.Service(Actor, target), name="actors", replicas=4)
    with program.launch() as running:
        actors = running.client("actors").all
        assert actors.pull() == [2 << 20] * 4
        shares, private = zip(*actors.weights_bytes(), strict=True)
    size = 16 << 20
    if way == "plain":  # each has a copy
        assert sum(private) >= 4 * size
    else:
        assert sum(private) < size / 8
        assert sum(shares) < 1.1 * size
