"""A worker writes the run during which it was started, wherever in its code it logs."""

from __future__ import annotations

from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.processes.session import Session
from ropewalk.tracking import current_run, open_store

pytestmark = pytest.mark.usefixtures("shared_session")


def log_in_worker(number: int) -> str:
    run = current_run()
    assert run and run.config["lr"] == 0.1
    run.log(number=number, step=number)
    return run.id


def log_in_workers_worker(num: int) -> set[str]:
    with rw.Pool(2) as pool:
        return set(pool.map(log_in_worker, range(num)))


def has_run(_: object) -> bool:
    return current_run() is not None


def test_workers_of_a_pool_and_of_pools_inside_them_write_the_run_of_the_script(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    with rw.Pool(1) as before, rw.tracking.track("p", {"lr": 0.1}, store=store, system=False) as run:
        with rw.Pool(2) as pool:
            assert set(pool.map(log_in_worker, range(100))) == {run.id}
            assert pool.apply(log_in_workers_worker, (20,)) == {run.id}
        assert not before.apply(has_run, (None,)), "it was started before the run"
    with rw.Pool(1) as after:
        assert not after.apply(has_run, (None,)), "it was started after the run"
    with open_store(store) as opened:
        (series,) = opened.series(run.id)
        assert (series.name, series.count) == ("number", 120)
        assert opened.run(run.id).state == "done"


def test_records_that_are_still_on_their_way_when_a_run_ends_belong_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = Session.settle_records

    def take_the_last_ones(session: Session, timeout_s: float) -> bool:
        run.log(late=1.0)  # as if it came from a process now
        return settle(session, timeout_s)

    store = tmp_path / "runs.db"
    with rw.tracking.track("p", store=store, system=False) as run, rw.Pool(1) as pool:
        pool.apply(abs, (-1,))
        monkeypatch.setattr(Session, "settle_records", take_the_last_ones)
    with open_store(store) as opened:
        assert [series.name for series in opened.series(run.id)] == ["late"]
