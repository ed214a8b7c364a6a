"""`track=` keeps what programs, trainers and populations report, and nothing else has to be said."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk import rl
from ropewalk.population import SNES, evaluate
from ropewalk.tracking import RunPaused, RunStopped, current_run, open_store, track
from ropewalk.tracking.observed_run import observed
from ropewalk.tracking.store.rows import RunRow
from ropewalk.tracking.store.store import RunStore
from tests.patience import wait_until

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
    try:
        Path(os.environ["MARKER"]).touch(exist_ok=False)
    except FileExistsError:  # another one has died, or is about to
        return sphere(x)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")


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
    saved, report = tmp_path / "saved", asked_for("pause")
    with pytest.raises(RunPaused):
        evaluate(es(), sphere, generations=4, checkpoint=saved, track=True, progress=False, report=report)
    run = only(store)
    assert run.state == "paused"
    monkeypatch.setenv("ROPEWALK_CONTINUE", run.id)  # as `ropewalk runs continue` does
    result = evaluate(es(), sphere, generations=4, checkpoint=saved, track=True, progress=False)
    assert only(store).state == "done" and [one.from_step for one in store.attempts(run.id)] == [0, 2]
    assert values(store, run, "max") == [row["max"] for row in result.table]
    assert result.table[-1]["max"] == evaluate(es(), sphere, generations=4, progress=False).table[-1]["max"]


# --- programs ---------------------------------------------------------------------------------------------------------


def work(num: int, fails: bool = False) -> None:
    run = current_run()
    assert run
    for step in range(num):
        run.log(step=step, done=step)
    if fails:
        raise LookupError("nothing left to do")


def die_at_first(marker: str) -> None:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_a_program_keeps_its_graph_its_table_and_what_its_nodes_log(store: RunStore, mode: Any) -> None:
    program = rw.Program("demo")
    program.add(rw.Worker(work, 50), name="worker", replicas=2)
    with program.launch(mode, track="graphs") as running:
        running.wait()
    run = only(store)
    assert (run.project, run.kind, run.state, run.name[:4]) == ("graphs", "program", "done", "demo")
    assert run.config["nodes"] == {"worker": {"kind": "worker", "replicas": 2}}
    (plan,) = [each for each in store.events(run.id) if each.kind == "plan"]
    assert "2 replicas of worker" in plan.text and plan.data["graph"]
    assert sorted(values(store, run, "done", "")) == sorted([*range(50), *range(50)])
    assert {f"worker.{replica}/cpu_s" for replica in range(2)} <= {each.name for each in store.series(run.id)}
    assert current_run() is None


def test_deaths_of_nodes_are_events_and_a_failure_is_the_end_of_the_run(store: RunStore, tmp_path: Path) -> None:
    program = rw.Program("demo")
    program.add(rw.Worker(die_at_first, str(tmp_path / "marker")), name="mortal", restart="on_failure")
    with program.launch(track=True) as running:
        running.wait()
    (death,) = [each for each in store.events(only(store).id) if each.kind == "death"]
    assert death.text.startswith("mortal") and "was killed by SIGKILL" in death.text
    program = rw.Program("broken")
    program.add(rw.Worker(work, 3, True), name="worker")
    with pytest.raises(rw.ProgramFailed):
        program.launch(track=True).wait()
    (failed,) = store.runs(states=["failed"])
    assert "LookupError: nothing left to do" in failed.why and len(values(store, failed, "done", "")) == 3


def test_programs_that_run_at_once_have_runs_of_their_own(store: RunStore) -> None:
    programs = [rw.Program(name) for name in ("first", "second")]
    for num, program in enumerate(programs, 1):
        program.add(rw.Worker(work, 10 * num), name="worker")
    first, second = (program.launch(track=True) for program in programs)
    first.wait()
    second.wait()
    assert {run.name.partition("-")[0]: len(values(store, run, "done", "")) for run in store.runs()} == {
        "first": 10,
        "second": 20,
    }


def wait_to_the_end() -> None:
    rw.wait_for_stop()


def test_a_program_that_is_asked_to_stop_ends_its_nodes(store: RunStore) -> None:
    program = rw.Program("demo")
    program.add(rw.Worker(wait_to_the_end), name="worker")
    with program.launch(track=True) as running:
        running.wait_ready()
        store.request(only(store).id, "stop")
        running.wait()
    assert (only(store).state, only(store).why) == ("stopped", "its run was asked to stop")


# --- trainers ---------------------------------------------------------------------------------------------------------


def trainer_of(**options: Any) -> rw.Trainer:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    options = {"micro_batches": 2, "example_inputs": (torch.ones(8, 4),), **options}
    return rw.Trainer(model, nn.functional.mse_loss, lambda params: torch.optim.SGD(params, 0.1), **options)


@pytest.mark.parametrize("inline", [True, False])
def test_a_trainer_keeps_its_plan_its_losses_its_checkpoints_and_its_report(
    store: RunStore, tmp_path: Path, inline: bool
) -> None:
    x, y = torch.ones(8, 4), torch.zeros(8, 4)
    with trainer_of(inline=inline, track="nets") as trainer:
        handles = [trainer.step(x, y) for _ in range(6)]
        trainer.save(tmp_path / "saved").wait()
        trainer.step(x, y)
    run = only(store)
    assert (run.project, run.kind, run.state, run.config["workers"]) == ("nets", "trainer", "done", 1)
    losses = store.points(run.id, "loss", "")
    assert losses.steps.tolist() == list(range(1, 8))
    assert losses.values.tolist()[:6] == [float(handle.metrics().loss) for handle in handles]
    assert [(each.step, each.size_bytes > 0) for each in store.checkpoints(run.id)] == [(6, True)]
    kinds = [each.kind for each in store.events(run.id)]
    assert kinds.count("plan") == kinds.count("report") == 1
    assert len(values(store, run, "step_s")) == 1


def test_a_trainer_that_is_asked_to_pause_does_so_at_its_checkpoint_and_to_stop_before_its_step(
    store: RunStore, tmp_path: Path
) -> None:
    def train(action: str, *, saves: bool) -> None:
        x, y = torch.ones(8, 4), torch.zeros(8, 4)
        with trainer_of(inline=True, track=True) as trainer:
            run = current_run()
            assert run
            trainer.step(x, y)
            store.request(run.id, action)
            wait_until(lambda: not store.requests([run.id]))
            if saves:
                trainer.step(x, y)
                trainer.save(tmp_path / "saved")
            trainer.step(x, y)

    with pytest.raises(RunPaused):
        train("pause", saves=True)
    with pytest.raises(RunStopped):
        train("stop", saves=False)
    ended = {run.state: len(values(store, run, "loss", "")) for run in store.runs()}
    assert ended == {"paused": 2, "stopped": 1}


@pytest.mark.parametrize("of_a_folder", [True, False])
def test_an_attempt_of_a_trainer_says_from_which_step_it_goes_on(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_a_folder: bool
) -> None:
    x, y = torch.ones(8, 4), torch.zeros(8, 4)
    with trainer_of(inline=True, track=True) as trainer:
        trainer.step(x, y)
        trainer.step(x, y)
        trainer.save(tmp_path / "saved")
        state = trainer.state_dict()
    run = only(store)
    (first,) = store.attempts(run.id)
    monkeypatch.setenv("ROPEWALK_CONTINUE", run.id)
    with trainer_of(inline=True, track=True) as trainer:
        if of_a_folder:
            trainer.load(tmp_path / "saved")
        else:
            trainer.load_state_dict(state)
        trainer.step(x, y)
        trainer.load_state_dict(trainer.state_dict())  # which is no beginning
    before, second = store.attempts(run.id)
    assert before == first and (first.from_step, second.from_step) == (0, 2)
    assert (second.outcome, second.host, second.pid) == ("done", first.host, first.pid)


def test_an_exception_in_the_loop_of_a_trainer_is_the_cause_of_its_end(store: RunStore) -> None:
    with pytest.raises(LookupError), trainer_of(inline=True, track=True):
        raise LookupError("no more data")
    assert only(store).state == "failed" and "LookupError: no more data" in only(store).why


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actors", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_an_experiment_keeps_the_rows_of_its_log(store: RunStore, actors: int) -> None:
    agent = rl.PPO(envs=2, unroll=8)
    experiment = rl.Experiment(agent, rl.Gymnasium("CartPole-v1"), steps=64, evaluation=rl.Evaluation(32, episodes=1))
    experiment.run(actors, log="silent", track=True)
    run = only(store)
    assert (run.kind, run.state, run.config["agent"]["envs"]) == ("experiment", "done", 2)
    assert max(store.points(run.id, "steps", "table").values) >= 64
    if not actors:
        assert len(values(store, run, "score", "validation")) == 2


@pytest.mark.parametrize("actors", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_an_attempt_of_an_experiment_says_from_which_step_it_goes_on(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actors: int
) -> None:
    agent = rl.PPO(envs=2, unroll=8)
    experiment = rl.Experiment(agent, rl.Gymnasium("CartPole-v1"), steps=16, checkpoint=tmp_path / "saved")
    experiment.run(actors, log="silent", track=True)
    run = only(store)
    monkeypatch.setenv("ROPEWALK_CONTINUE", run.id)
    dataclasses.replace(experiment, steps=32).run(actors, log="silent", track=True)
    assert [one.from_step for one in store.attempts(run.id)] == [0, 16]
