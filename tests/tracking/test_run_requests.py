"""What can be asked of a run, and what is told of the answer; whole requests are tested by `ropewalk runs`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import RunUnsuitable
from ropewalk.tracking.records import OwnerIs, RunRecord, StateIs
from ropewalk.tracking.run_requests import answer_to, answer_words, check_can_be_asked, is_here, kill_run, wait_for_end
from tests.patience import wait_until
from tests.tracking.store.making import begin, new_store, own_process


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with new_store(tmp_path) as made:
        yield made


def test_only_a_running_one_can_be_asked(store: Any) -> None:
    begin(store, "a", own_process(), StateIs("running", 2.0))
    begin(store, "b", StateIs("done", 2.0))
    check_can_be_asked(store.run("a"), "pause")
    with pytest.raises(RunUnsuitable, match=r"\(b\) is done; only a running one can be stopped"):
        check_can_be_asked(store.run("b"), "stop")


def test_a_lost_one_can_be_killed_where_its_process_is(store: Any) -> None:
    here = own_process()
    begin(store, "a", OwnerIs(here.host, 2**22 + 1, 2, here.boot), StateIs("running", 2.0))  # above all process ids
    assert store.run("a").state == "lost" and not is_here(store.run("a"))
    with pytest.raises(
        RunUnsuitable, match="lost: the process that wrote it is gone; only a running one can be killed"
    ):
        check_can_be_asked(store.run("a"), "kill")


def test_an_answer_is_found_and_told(store: Any) -> None:
    begin(store, "a", own_process(), StateIs("running", 2.0))
    number = store.request("a", "pause")
    assert answer_to(store, number, 0.01) is None
    assert "has not answered within 3 s; the request stays open" in answer_words(store.run("a"), None, 3.0)
    store.answer(number, True, "it pauses soon")
    answered = answer_to(store, number)
    assert answered is not None and answer_words(store.run("a"), answered) == "it pauses soon"


def test_who_asks_a_process_that_dies_is_told(store: Any) -> None:
    here = own_process()
    begin(store, "a", OwnerIs(here.host, 2**22 + 1, 2, here.boot), StateIs("running", 2.0))  # above all process ids
    answered = answer_to(store, store.request("a", "stop"), 0.01)
    assert answered is not None and not answered.ok
    assert answered.answer == "its process died before it answered; ropewalk runs continue goes on with the run"


def test_the_end_of_a_run_that_has_ended_is_not_waited_for(store: Any) -> None:
    begin(store, "a", StateIs("done", 2.0))
    wait_for_end(store, "a", 1e9)


def test_a_kill_is_over_when_the_end_is_written(store: Any) -> None:
    """A process answers first and writes its end then; who looked in between would be told that it still runs."""
    begin(store, "a", own_process(), StateIs("running", 2.0))
    killing = threading.Thread(target=kill_run, args=(store, store.run("a"), 3600.0))
    killing.start()
    (request,) = wait_until(lambda: store.requests(["a"]))
    store.answer(request.number, True, "it was killed")
    killing.join(0.5)
    assert killing.is_alive()
    store.apply([RunRecord("a", StateIs("stopped", 3.0))])
    killing.join()
