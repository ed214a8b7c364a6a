"""The table and its views: what was told adds up to what is true, every change once, and nobody waits in vain."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.calls.directory import ReplicaLocation
from ropewalk.program import directory
from ropewalk.program.directory import DirectoryView, Table
from ropewalk.program.instructions import ReplicaState
from ropewalk.program.messages import Placed, Sizes
from tests.forked_process import ForkedProcess
from tests.interrupting import interrupts_at_each_step
from tests.patience import PATIENCE_S, wait_until

READY, WAITING, ENDING = ReplicaState.READY, ReplicaState.WAITING, ReplicaState.ENDING
WHY = "the program stops: it was asked to"


def up(name: str, replica: int, generation: int = 0, target: int = 1, cause: str = "") -> Placed:
    return Placed(name, replica, "up", f"unix:/{name}{replica}", target, "", generation, cause)


def told(name: str, replica: int, state: str, generation: int = 0, cause: str = "") -> Placed:
    return Placed(name, replica, state, "", 0, "", generation, cause)


class Program:
    """A table with services a and b, and what a subscriber of everything was told."""

    def __init__(self) -> None:
        self.table = Table({"a": 1, "b": 1})
        self.places: dict[tuple[str, int], Placed] = {}
        self.sizes = {"a": 1, "b": 1}

    def hear(self, news: list[Placed | Sizes]) -> None:
        for message in news:
            if isinstance(message, Sizes):
                assert self.sizes[message.name] != message.replicas, "told again"
                self.sizes[message.name] = message.replicas
            else:
                assert self.places.get((message.name, message.replica)) != message, "told again"
                self.places[message.name, message.replica] = message


#: What happens to each of up to three replicas of one service: its state, and whether it came up.
replicas = st.lists(
    st.tuples(
        st.sampled_from([state for state in ReplicaState if state is not ReplicaState.REMOVED]),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from(["", "was killed"]),
    ),
    max_size=3,
)


@given(st.lists(st.tuples(replicas, replicas, st.sampled_from(["", WHY])), max_size=8))
def test_what_subscribers_were_told_adds_up_to_what_is_true_and_nothing_is_told_twice(steps: list[Any]) -> None:
    program = Program()
    removed: set[tuple[str, int]] = set()
    for *services, stopping in steps:
        states = [
            (name, index, state, generation, cause)
            for name, service in zip("ab", services, strict=True)
            for index, (state, generation, _, cause) in enumerate(service)
        ]
        for name, service in zip("ab", services, strict=True):
            for index, (_, generation, came_up, _) in enumerate(service):
                if came_up:
                    program.table.came_up(name, index, generation, f"unix:/{name}{index}", 1)
        sizes = {name: len(service) for name, service in zip("ab", services, strict=True)}
        present = {(name, index) for name, index, *_ in states}
        gone = [(*key, ReplicaState.REMOVED, 0, "") for key in sorted(set(program.places) - removed - present)]
        program.hear(program.table.update([*states, *gone], sizes, stopping=stopping))
        assert program.table.update([*states, *gone], sizes, stopping=stopping) == []
        assert program.table.update([], sizes, stopping=stopping) == [], "what is not named has not changed"
        assert program.sizes == sizes
        removed = (removed | set(program.places)) - present
        assert {key for key in program.places if key not in present} == removed
        assert all(program.places[key].cause == "it was scaled away" for key in removed)
        for name in "ab":
            known = [program.places[name, index] for index in range(sizes[name])]
            assert program.table.about(name) == [*known, Sizes(name, sizes[name])], "as one hears who comes later"


def test_a_service_is_up_when_its_address_is_known_and_until_it_has_ended() -> None:
    table = Table({"a": 1})
    sizes = {"a": 1}

    def update(state: ReplicaState, generation: int = 0, *, stopping: str = "") -> list[Any]:
        return table.update([("a", 0, state, generation, "")], sizes, stopping=stopping)

    assert update(ReplicaState.STARTING) == [told("a", 0, "waiting")]
    table.came_up("a", 0, 0, "unix:/a0", 1)
    assert update(ReplicaState.STARTING) == [up("a", 0)], "its colocated neighbours may still be starting"
    assert update(READY) == []
    assert update(ENDING, stopping=WHY) == [], "it answers while it ends, and says itself when it takes no more"
    assert update(ReplicaState.STOPPED, stopping=WHY) == [told("a", 0, "stopped", cause=WHY)]


def test_a_restart_is_told_with_its_cause_and_an_older_address_is_not_shown_again() -> None:
    table = Table({"a": 1})
    table.came_up("a", 0, 0, "unix:/a0", 1)
    assert table.update([("a", 0, READY, 0, "")], {"a": 1}, stopping="") == [up("a", 0)]
    waiting = table.update([("a", 0, WAITING, 0, "it was killed")], {"a": 1}, stopping="")
    assert waiting == [told("a", 0, "waiting", 0, "it was killed")]
    again = table.update([("a", 0, ReplicaState.STARTING, 1, "it was killed")], {"a": 1}, stopping="")
    assert again == [told("a", 0, "waiting", 1, "it was killed")]
    table.came_up("a", 0, 1, "unix:/a0", 2)
    assert table.update([("a", 0, READY, 1, "it was killed")], {"a": 1}, stopping="") == [
        up("a", 0, 1, 2, "it was killed")
    ], "whoever was slow still hears why"


def test_who_calls_a_replica_that_was_scaled_away_hears_that_it_is_gone() -> None:
    # It was left "up" in every view, and a caller without a deadline dialled its old address for ever.
    table = Table({"a": 2})
    for replica in (0, 1):
        table.came_up("a", replica, 0, f"unix:/a{replica}", 1)
    table.update([("a", 0, READY, 0, ""), ("a", 1, READY, 0, "")], {"a": 2}, stopping="")
    assert table.update([("a", 0, READY, 0, ""), ("a", 1, ENDING, 0, "")], {"a": 1}, stopping="") == [Sizes("a", 1)]
    assert table.update([("a", 1, ReplicaState.REMOVED, 0, "")], {"a": 1}, stopping="") == [
        told("a", 1, "failed", 0, "it was scaled away")
    ]
    again = table.update([("a", 1, ReplicaState.STARTING, 1, "")], {"a": 2}, stopping="")
    assert again == [told("a", 1, "waiting", 1), Sizes("a", 2)], "the place first: who knows the size looks there"


def test_at_the_end_what_failed_or_completed_keeps_its_state_and_all_else_has_stopped() -> None:
    table = Table(dict.fromkeys("abcd", 1))
    states = [
        ("a", 0, ReplicaState.FAILED, 0, "it raised"),
        ("b", 0, ReplicaState.COMPLETED, 0, ""),
        ("c", 0, ReplicaState.STOPPED, 0, ""),
        ("d", 0, READY, 0, ""),  # never came up
    ]
    assert table.update(states, dict.fromkeys("abcd", 1), stopping=WHY) == [
        told("a", 0, "failed", 0, "it raised"),
        told("b", 0, "completed"),
        told("c", 0, "stopped", cause=WHY),
        told("d", 0, "stopped", cause=WHY),
    ]


def test_the_table_does_not_grow_with_what_came_and_went() -> None:
    table = Table({"a": 0})
    for generation in range(50):
        table.came_up("a", 3, generation, "unix:/a3", 1)
        table.update([("a", 3, READY, generation, "")], {"a": 4}, stopping="")
        table.update([("a", 3, ReplicaState.REMOVED, generation, "")], {"a": 0}, stopping="")
    assert all(not value or value == {"a": 0} for value in vars(table).values())


# Views


class Asking:
    """A view, and what it asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.asks = threading.Semaphore(0)
        self.num_waits = 0
        self.view = DirectoryView(self._ask, self._waits)

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        self.asks.release()

    def _waits(self) -> None:
        self.num_waits += 1

    def answer(self, *news: Placed | Sizes) -> None:
        for message in news:
            self.view.hear(message)


def test_news_of_another_place_name_the_one_that_is_left() -> None:
    view = DirectoryView(lambda _name: None, lambda: None)
    waiting = Placed("a", 0, "waiting", "", 0, "", 0, "it is gone")
    news = [Sizes("a", 1), up("a", 0), up("a", 0), waiting, waiting]
    assert [view.hear(message) for message in news] == ["", "", "", "unix:/a0", ""]


@pytest.fixture
def asking() -> Asking:
    return Asking()


@pytest.fixture
def aside() -> Any:
    with ThreadPoolExecutor(4) as executor:
        yield executor.submit


def test_the_first_look_waits_for_the_launcher_and_asks_once(asking: Asking, aside: Callable[..., Any]) -> None:
    looks = [aside(asking.view.find, "a", 0), aside(asking.view.find, "a", 0), aside(asking.view.replicas, "a")]
    assert asking.asks.acquire(timeout=PATIENCE_S)
    asking.answer(up("a", 0))
    assert not looks[0].done(), "the size comes last; before it, not all is known"
    asking.answer(Sizes("a", 1))
    place = ReplicaLocation("up", "unix:/a0", 1)
    assert [look.result(PATIENCE_S) for look in looks] == [place, place, 1]
    assert asking.view.find("a", 0) == place and asking.asked == ["a"] and asking.num_waits <= 3


def test_sizes_alone_do_not_say_that_a_replica_is_not_there(asking: Asking, aside: Callable[..., Any]) -> None:
    # In threads mode a unit hears of a service that another one asked for, and then only what changed.
    asking.answer(up("a", 1), Sizes("a", 2))
    looks = aside(asking.view.find, "a", 0)
    assert asking.asks.acquire(timeout=PATIENCE_S) and not looks.done()
    asking.answer(up("a", 0), up("a", 1), Sizes("a", 2))
    assert looks.result(PATIENCE_S).state == "up"


def test_a_replica_that_does_not_exist_has_failed(asking: Asking) -> None:
    asking.answer(up("a", 0), Sizes("a", 1))
    assert asking.view.find("a", 1) == ReplicaLocation("failed", cause="a has 1 replicas")


def test_who_waits_for_news_is_woken_by_the_first_change_of_that_place(
    asking: Asking, aside: Callable[..., Any]
) -> None:
    asking.answer(up("a", 0), up("a", 1), Sizes("a", 2))
    seen = asking.view.find("a", 0)
    waits = aside(asking.view.wait_for_news, "a", 0, seen, PATIENCE_S)
    asking.answer(told("a", 1, "waiting"), up("a", 0))
    assert not waits.done(), "another replica, and nothing new"
    asking.answer(told("a", 0, "waiting", 0, "it was killed"))
    assert waits.result(PATIENCE_S) == ReplicaLocation("waiting", cause="it was killed")
    assert asking.view.wait_for_news("a", 0, seen, PATIENCE_S).state == "waiting", "news that came before are news"


def test_waiting_for_news_ends_with_what_was_seen(asking: Asking) -> None:
    asking.answer(up("a", 0), Sizes("a", 1))
    seen = asking.view.find("a", 0)
    assert asking.view.wait_for_news("a", 0, seen, 0.0) is seen
    assert asking.num_waits == 1, "the loop is handed over before any wait"


@pytest.mark.parametrize("known", [True, False])
def test_the_end_of_the_launcher_ends_all_waits(asking: Asking, aside: Callable[..., Any], known: bool) -> None:
    if known:
        asking.answer(up("a", 0), Sizes("a", 1))
        waits = aside(asking.view.wait_for_news, "a", 0, asking.view.find("a", 0), PATIENCE_S)
    else:
        waits = aside(asking.view.find, "a", 0)
        assert asking.asks.acquire(timeout=PATIENCE_S)
    asking.view.end("the program has ended")
    stopped = ReplicaLocation("stopped", cause="the program has ended")
    assert waits.result(PATIENCE_S) == stopped == asking.view.find("a", 0) == asking.view.find("b", 3)
    assert asking.view.replicas("b") == 0


def test_a_launcher_that_does_not_answer_is_waited_for_and_reported_once(
    asking: Asking,
    aside: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A launcher that was stopped for more than 30 s (Ctrl-Z, a debugger), and a node that was itself, lost the service.
    monkeypatch.setattr(directory, "_SILENT_S", 0.01)
    looks = [aside(asking.view.find, "a", 0), aside(asking.view.replicas, "a")]
    wait_until(lambda: asking.num_waits > 6 and len(caplog.records) >= 2)
    assert not any(look.done() for look in looks)
    asking.answer(up("a", 0), Sizes("a", 1))
    assert [look.result(PATIENCE_S) for look in looks] == [ReplicaLocation("up", "unix:/a0", 1), 1]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("where a is: it is stopped, or very busy" in text for text in told), told


@pytest.mark.parametrize("look", [lambda view: view.find("a", 0), lambda view: view.replicas("a")])
def test_a_deadline_ends_the_wait_for_the_launcher(asking: Asking, look: Callable[[DirectoryView], object]) -> None:
    with (
        rw.deadline(0.01),
        pytest.raises(rw.DeadlineExceeded, match="where a is, and the deadline has passed") as caught,
    ):
        look(asking.view)
    assert caught.value.call == "a" and asking.asked == ["a"]


def test_a_forked_process_is_told_where_to_call_what_is_not_known_yet(asking: Asking) -> None:
    """The launcher answers its parent: it waited for 30 s."""
    asking.answer(up("a", 0), Sizes("a", 1))

    def look() -> None:
        assert asking.view.find("a", 0).state == "up"
        with pytest.raises(rw.ServiceLost, match=f"call b in process {os.getppid()}, from which this one"):
            asking.view.find("b", 0)

    with ForkedProcess(look) as child:
        child.wait_until_done()
    assert asking.asked == []


def test_an_interrupt_at_any_step_of_a_look_leaves_the_view_to_others(aside: Callable[..., Any]) -> None:
    # One that struck while the main thread entered the condition that was here left it locked: every other thread that
    # looked then, and the loop with the next news, waited for ever.
    def answer(name: str) -> None:
        view.hear(Sizes(name, 1))

    view = DirectoryView(answer, lambda: None)
    view.hear(up("a", 0))

    def look() -> None:
        view._sizes.clear()
        view._asked.clear()
        view.replicas("a")
        view.wait_for_news("a", 0, view.find("a", 0), 0.0)

    num_steps = 0
    for step in interrupts_at_each_step(look):
        num_steps += 1
        waits = aside(view.wait_for_news, "a", 0, view.find("a", 0), PATIENCE_S)
        told_of = aside(view.hear, told("a", 0, "waiting", num_steps))
        size = aside(view.replicas, "a")
        assert [told_of.result(PATIENCE_S), size.result(PATIENCE_S)] == ["unix:/a0" if num_steps == 1 else "", 1], step
        assert waits.result(PATIENCE_S).generation == num_steps, step
    assert num_steps > 20
