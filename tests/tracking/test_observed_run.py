"""`track=` keeps what programs, trainers and populations report, and nothing else has to be said."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.population import SNES, evaluate
from ropewalk.tracking import RunPaused, RunStopped, current_run, open_store, track
from ropewalk.tracking.observed_run import observed
from ropewalk.tracking.store.rows import RunRow
from ropewalk.tracking.store.store import RunStore
from tests.scenarios.tasks import wait_until

pytestmark = pytest.mark.usefixtures("shared_session")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    """The store of this user, for this test."""
    monkeypatch.setenv("ROPEWALK_STORE", str(tmp_path / "runs.db"))
    with open_store() as store:
        yield store


def only(store: RunStore) -> RunRow:
    (run,) = store.runs()
    return run


def values(store: RunStore, run: RunRow, name: str, group: str = "table") -> list[float]:
    return store.points(run.id, name, group).values.tolist()


def test_without_track_nothing_is_written_and_no_store_is_made(tmp_path: Path) -> None:
    watched = observed(False, "population", "ga", {})
    watched.row({"loss": 1.0}, 1)
    watched.event("plan", "x")
    watched.end()
    assert watched.run is None and current_run() is None and not list(tmp_path.iterdir())


# --- populations ------------------------------------------------------------------------------------------------------


def sphere(x: Any) -> float:
    return -float((x**2).sum())


def sphere_that_fails_in_some_cases(x: Any) -> float:
    if x[0] < 0:
        raise LookupError("no fitness below 0")
    return sphere(x)


def es(population: int = 8) -> SNES:
    return SNES(np.ones(3), population=population, seed=1)


def test_rows_settings_and_checkpoints_of_a_population_become_a_run(store: RunStore, tmp_path: Path) -> None:
    result = evaluate(es(), sphere, generations=5, checkpoint=tmp_path / "saved", track="swarm", progress=False)
    run = only(store)
    assert (run.project, run.kind, run.state, run.name[:4]) == ("swarm", "population", "done", "snes")
    assert (run.config["algorithm"], run.config["population"], run.config["generations"]) == ("SNES", 8, 5)
    assert values(store, run, "max") == [row["max"] for row in result.table]
    assert store.points(run.id, "best", "table").steps.tolist() == [1, 2, 3, 4, 5]
    assert [each.step for each in store.checkpoints(run.id)] == [1, 2, 3, 4, 5]
    assert store.checkpoints(run.id)[-1].size_bytes > 0
    assert current_run() is None


def test_failed_evaluations_become_events_and_a_failure_of_the_run_its_state(store: RunStore) -> None:
    evaluate(es(), sphere_that_fails_in_some_cases, generations=3, failures="worst", track=True, progress=False)
    run = only(store)
    events = [each for each in store.events(run.id) if each.kind == "evaluation failed"]
    assert events and all("no fitness below 0" in each.text for each in events)
    with pytest.raises(LookupError):
        evaluate(es(64), sphere_that_fails_in_some_cases, generations=3, track=True, progress=False)
    (failed,) = store.runs(states=["failed"])
    assert "LookupError: no fitness below 0" in failed.why


def die_once(x: Any) -> float:
    marker = Path(os.environ["MARKER"])
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return sphere(x)


def test_the_death_of_a_worker_of_a_pool_is_an_event_with_its_cause(store: RunStore, tmp_path: Path) -> None:
    with track("p", system=False) as run, rw.Pool(2, environment={"MARKER": str(tmp_path / "died")}) as pool:
        evaluate(es(), die_once, pool, generations=3, track=True, progress=False)
    (death,) = [each for each in store.events(run.id) if each.kind == "death"]
    assert "was killed by SIGKILL" in death.text and death.data["signal"] == signal.SIGKILL
    assert only(store).id == run.id, "what is observed during a run of the script belongs to it"
    assert len(values(store, only(store), "max")) == 3


def asked_for(action: str) -> Callable[..., None]:
    """A report that asks the run for something after its second generation."""

    def report(generation: int, **row: object) -> None:
        run = current_run()
        assert run
        if generation == 2:
            with open_store() as store:
                store.request(run.id, action)
            wait_until(lambda: _is_answered(run.id))

    return report


def _is_answered(run: str) -> bool:
    with open_store() as store:
        return not store.requests([run])


def test_a_population_that_is_asked_to_stop_ends_after_its_generation(store: RunStore) -> None:
    with pytest.raises(RunStopped, match="after step 2"):
        evaluate(es(), sphere, generations=100, track=True, progress=False, report=asked_for("stop"))
    run = only(store)
    assert (run.state, run.why) == ("stopped", "stopped by request after step 2")


def test_a_population_that_is_asked_to_pause_goes_on_from_its_checkpoint(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunPaused):
        evaluate(
            es(),
            sphere,
            generations=4,
            checkpoint=tmp_path / "s",
            track=True,
            progress=False,
            report=asked_for("pause"),
        )
    run = only(store)
    assert run.state == "paused"
    monkeypatch.setenv("ROPEWALK_CONTINUE", run.id)  # as `ropewalk runs continue` does
    result = evaluate(es(), sphere, generations=4, checkpoint=saved, track=True, progress=False)
    assert only(store).state == "done" and len(store.attempts(run.id)) == 2
    assert values(store, run, "max") == [row["max"] for row in result.table]
    assert result.table[-1]["max"] == evaluate(es(), sphere, generations=4, progress=False).table[-1]["max"]
