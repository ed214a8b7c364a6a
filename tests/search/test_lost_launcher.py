"""A search whose launcher on another host was killed a moment ago: it goes on, and no new one begins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from ropewalk.launcher_claim import LauncherClaim
from ropewalk.population.hyperparameters import Uniform
from ropewalk.search.lost_launcher import wait_for_lost_launcher
from ropewalk.search.search import Search
from ropewalk.search.store_keeper import complete_search, told_of_running, unfinished_search
from ropewalk.tracking.records import OwnerIs, Record, StateIs
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.schema import RUNS
from tests.search import functions
from tests.tracking.store.making import begin, new_store, of, own_process

ELSEWHERE = OwnerIs("n1", 7, 5, "its boot")
X = {"x": Uniform(0, 1)}


class Host:
    """A host with a clock of its own, which only sleep moves, and a search that began 10 s before on another one."""

    def __init__(self, folder: Path, owner: OwnerIs = ELSEWHERE) -> None:
        self.store = new_store(folder)
        self.folder = folder / "s1"
        began = self.store._clock()
        begin(self.store, "s1", owner, StateIs("running", began), kind="search", folder=str(self.folder))
        heard = self.store.run("s1").heard
        self.now = heard + 10
        self.num_looks = 0
        self.store._clock = self.store._writer._clock = lambda: self.now

    def wait(self, then: Callable[[int], object] = lambda looks: None) -> str:
        def sleep(seconds: float) -> None:
            self.now += seconds
            self.num_looks += 1
            then(self.num_looks)

        return wait_for_lost_launcher(self.store, "digits", "first", sleep=sleep)

    def put(self, record: Record) -> None:
        self.store.apply(of("s1", record))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.store.close()


def test_a_launcher_of_which_nothing_is_heard_for_a_minute_is_lost(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that was killed and requeued began a new search, as the old one counted as running for a minute."""
    assert unfinished_search(host.store, "digits", "first") is None, "it counts as running"
    host.wait()
    assert host.num_looks == 51
    assert "first (s1) was running a moment ago in process 7 on n1, which may have been killed" in caplog.text
    found = unfinished_search(host.store, "digits", "first")
    assert found is not None and found[0].id == "s1"
    found[1].close()


def test_a_launcher_that_is_heard_runs(host: Host) -> None:
    assert not host.wait(lambda looks: host.put(ELSEWHERE) if looks == 12 else None)
    assert host.num_looks == 12
    assert unfinished_search(host.store, "digits", "first") is None


def test_a_search_that_pauses_meanwhile_is_not_waited_for_any_longer(host: Host) -> None:
    host.wait(lambda looks: host.put(StateIs("paused", host.now)) if looks == 3 else None)
    assert host.num_looks == 3


def test_a_search_goes_on_where_the_clock_is_behind_that_of_the_lost_launcher(host: Host) -> None:
    # It waited for a minute, and then began a new search, as the old one counted as running for an hour.
    host.now -= 3600
    lost = host.wait()
    assert host.num_looks == 61 and host.store.run("s1").state == "running"
    found = unfinished_search(host.store, "digits", "first", lost=lost)
    assert found is not None and found[0].id == "s1"
    found[1].close()


def test_nobody_waits_for_a_launcher_that_certainly_runs(host: Host, tmp_path: Path) -> None:
    claim = LauncherClaim.on(host.folder)
    assert claim is not None
    host.wait()
    claim.close()
    (tmp_path / "here").mkdir()
    here = Host(tmp_path / "here", own_process())
    here.wait()
    here.store.close()
    wait_for_lost_launcher(host.store, "digits", "another")
    assert (host.num_looks, here.num_looks) == (0, 0)


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("state", ["paused", "running", "done"])
def test_a_search_that_others_have_written_into_a_database_does_not_go_on(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It chose the configurations that were tried, and a folder of this user that was made and written to."""
    path, trap = tmp_path / "runs.db", tmp_path / "home" / "ab12"
    monkeypatch.setattr("ropewalk.tracking.store.own_runs._told", set())
    Search(functions.value, X, metric="score", trials=1, store=path, name="s", progress=False).run()
    with open_store(path) as store:
        mine = store.runs(kind="search")[0]
        now = store._clock()
        begin(store, "ab12", ELSEWHERE, StateIs(state, now), kind="search", folder=str(trap), name="s",
              project=mine.project, config={**mine.config, "trials": 0}, time=now + 1)  # fmt: skip
        monkeypatch.setattr(store, "where", "postgresql://host/runs")
        wait_for_lost_launcher(store, mine.project, "s", sleep=lambda _: pytest.fail("it waits for a forged search"))
        assert unfinished_search(store, mine.project, "s") is None
        found, _ = complete_search(store, mine.project, "s", {**mine.config, "trials": 2}, ["trials"])
        assert found is not None and found[0].id == mine.id
        found[1].close()
        assert told_of_running(store, mine.project, "s") == ""
    assert not trap.parent.exists()
    assert "s (ab12) in postgresql://host/runs does not go on here" in caplog.text


@pytest.mark.usefixtures("shared_session")
def test_the_same_command_on_another_host_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> Search:
        return Search(functions.value, X, metric="score", trials=2, store=path, name="s", progress=False)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        with store._database.begin() as connection:  # nothing is heard for a long time
            connection.execute(update(RUNS).values(heard=RUNS.c.heard - 100))

    path, slept = tmp_path / "runs.db", list[float]()
    search().run()
    with open_store(path) as store:
        run = store.runs(kind="search")[0]
        store.apply(of(run.id, ELSEWHERE, StateIs("running", run.changed)))  # as if it had been killed now
        waiting = functools.partial(wait_for_lost_launcher, sleep=sleep)
        monkeypatch.setattr("ropewalk.search.claimed_search.wait_for_lost_launcher", waiting)
        search().run()
        assert slept == [1.0] and [each.id for each in store.runs(kind="search")] == [run.id]
