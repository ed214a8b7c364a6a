"""The table behind a watch, event by event, and how often a request is repeated: no cluster, no waiting."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.engines.kubernetes_api import ApiError, PodList, retrying
from ropewalk.engines.kubernetes_watch import PodTable, PodWatch
from tests.patience import PATIENCE_S


def pod(name: str, note: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "1"}, "status": {"phase": "Running", "reason": note}}


def alive(table: PodTable) -> set[str]:
    return {name for name, known in table.pods.items() if not known.is_gone}


def test_a_pod_that_a_new_list_lacks_is_gone_and_its_last_state_is_kept() -> None:
    table = PodTable()
    table.relist([pod("a", "first"), pod("b")], table.begin_list())
    table.event("MODIFIED", pod("a", "last"))
    table.relist([pod("b")], table.begin_list())
    assert alive(table) == {"b"}
    assert table.pods["a"].is_gone and table.pods["a"].pod["status"]["reason"] == "last"


def test_a_pod_created_while_a_list_was_under_way_is_not_gone() -> None:
    table = PodTable()
    began = table.begin_list()
    table.put(pod("new"))
    table.relist([], began)
    assert alive(table) == {"new"}
    table.relist([], table.begin_list())
    assert alive(table) == set()


def test_what_a_watch_knows_is_newer_than_the_answer_to_a_creation() -> None:
    table = PodTable()
    table.event("MODIFIED", pod("a", "newer"))
    table.put(pod("a", "older"))
    assert table.pods["a"].pod["status"]["reason"] == "newer"


def test_a_name_that_is_used_again_is_alive_again() -> None:
    table = PodTable()
    table.event("ADDED", pod("a"))
    table.event("DELETED", pod("a"))
    assert alive(table) == set()
    table.event("ADDED", pod("a"))
    assert alive(table) == {"a"}


def test_bookmarks_change_nothing() -> None:
    table = PodTable()
    table.event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    assert table.pods == {}


CHANGES = st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED", "list"]), st.sampled_from("abc")))


@given(CHANGES)
def test_the_table_agrees_with_the_cluster_whatever_part_came_by_list(changes: list[tuple[str, str]]) -> None:
    cluster: set[str] = set()
    table = PodTable()
    for kind, name in changes:
        if kind == "list":
            table.relist([pod(each) for each in cluster], table.begin_list())
        else:
            (cluster.discard if kind == "DELETED" else cluster.add)(name)
            table.event(kind, pod(name))
        assert alive(table) == cluster


class Failing:
    """Fails a number of times, then answers."""

    def __init__(self, times: int, **facts: Any) -> None:
        self.times = times
        self.facts = facts
        self.pauses: list[float] = []

    def __call__(self) -> str:
        if len(self.pauses) < self.times:
            raise ApiError("failed", **self.facts)
        return "answer"


@pytest.mark.parametrize(
    "facts",
    [{"status": 0}, {"status": 429}, {"status": 500}, {"status": 503}, {"status": 409, "reason": "Conflict"}],
    ids=str,
)
def test_failures_that_pass_are_waited_out_longer_each_time(facts: dict[str, Any]) -> None:
    call = Failing(4, **facts)
    assert retrying(call, 100, call.pauses.append) == "answer"
    assert all(0.05 * 2**n <= pause <= 0.1 * 2**n for n, pause in enumerate(call.pauses))


@pytest.mark.parametrize(
    "facts",
    [{"status": 401}, {"status": 403}, {"status": 404}, {"status": 409, "reason": "AlreadyExists"}, {"status": 422}],
    ids=str,
)
def test_refusals_are_not_repeated(facts: dict[str, Any]) -> None:
    call = Failing(1, **facts)
    with pytest.raises(ApiError):
        retrying(call, 100, call.pauses.append)
    assert not call.pauses


def test_the_server_says_how_long_to_wait() -> None:
    call = Failing(2, status=429, retry_after_s=7.0)
    assert retrying(call, 100, call.pauses.append) == "answer"
    assert call.pauses == [7.0, 7.0]


def test_patience_ends() -> None:
    call = Failing(1, status=429, retry_after_s=60.0)
    with pytest.raises(ApiError, match=re.escape("failed")):
        retrying(call, 10, call.pauses.append)
    assert not call.pauses, "waiting for longer than one has patience is of no use"


class Odd:
    """An API whose answers to lists, and to watches, are given one after the other; an error is raised."""

    def __init__(self, lists: list[Any], streams: list[list[dict[str, Any]]]) -> None:
        self.lists, self.streams = iter(lists), iter(streams)
        self.is_over = threading.Event()

    def list_pods(self, selector: str) -> PodList:
        answer = next(self.lists)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch_pods(self, selector: str, version: str, timeout_s: int) -> Any:
        return Events(next(self.streams, []), self.is_over)


class Events(list[dict[str, Any]]):
    """A stream of events that stays open until the watch is closed, if it has none."""

    def __init__(self, events: list[dict[str, Any]], is_over: threading.Event) -> None:
        super().__init__(events)
        self._is_over = is_over

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from super().__iter__()
        if not len(self):
            self._is_over.wait()

    def interrupt(self) -> None:
        self._is_over.set()


def test_a_watch_goes_on_after_an_answer_that_no_api_server_gives() -> None:
    """Its thread ended with a KeyError, and what was known until then was reported for ever."""
    first, later = PodList([pod("a", "first")], "1"), PodList([pod("a", "later")], "2")
    api: Any = Odd([KeyError("metadata"), first, later], [[{"type": "MODIFIED"}]])
    watch = PodWatch(api, "")
    try:
        assert "a" in watch.pods(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while watch.pods(0)["a"].pod["status"]["reason"] != "later":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert watch.error is None
    finally:
        watch.close()
