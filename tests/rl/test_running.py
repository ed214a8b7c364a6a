"""Experiments are seen by other terminals, in this process and as programs, with the numbers that they report."""

from __future__ import annotations

import threading

import pytest

from ropewalk import rl
from ropewalk.control.view import View
from ropewalk.rl.logs.logger import LogRow
from ropewalk.tracking.interruptions import RunStopped
from tests.control.looking import ask_for, look_at, looks, within
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("shared_session")

PANELS = {"returns": 0, "throughput": 0, "replay": 0, "staleness": 0}
CARTPOLE = rl.Gymnasium("CartPole-v1")


def small_dqn() -> rl.DQN:
    return rl.DQN(envs=4, unroll=8, batch_size=8, learning_starts=64, samples_per_insert=1.0)


class Looking:
    """A logger that looks at the experiment, as another terminal does, after some row that it is told."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.rows: list[LogRow] = []
        self.views: list[View] = []

    def __call__(self, label: str, row: LogRow) -> None:
        if label == "evaluation":
            return
        self.rows.append(row)
        if len(self.rows) in (1, self.at):
            self.views.append(look_at("experiment", PANELS))


def test_an_experiment_in_this_process_shows_its_last_row() -> None:
    logger = Looking(at=20)
    evaluation = rl.Evaluation(every_steps=100, episodes=2, max_steps=20)
    rl.Experiment(small_dqn(), CARTPOLE, steps=1000, evaluation=evaluation).run(log=logger)
    row, view = logger.rows[19], logger.views[1]
    assert (view.kind, view.name, view.state) == ("experiment", "DQN", "running")
    assert view.facts["environment"] == "CartPole-v1"
    assert (view.facts["env_steps"], view.facts["updates"]) == (row["steps"], row["updates"])
    assert view.progress == row["steps"] / 1000 and view.facts["env_steps_in_all"] == 1000  # type: ignore[operator]
    assert "evaluation" in view.facts
    assert view.offers == ("returns", "throughput", "replay", "staleness") and view.processes == ()
    assert view.panels["staleness"]["batches"]["mean"] == row["policy_lag"]
    assert looks("experiment") == []


def test_replay_is_looked_at_only_after_somebody_has_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.rl.running._EVERY_S", 0.0)
    logger = Looking(at=20)
    rl.Experiment(small_dqn(), CARTPOLE, steps=1000).run(log=logger)
    first, second = (view.panels["replay"] for view in logger.views)
    assert first["points"] == [] and first["tables"] == {}
    assert 1 <= len(second["points"]) <= 19
    table = second["tables"]["replay"]
    assert table["size"] == second["points"][-1]["size"] == second["points"][-1]["inserts"] > 0
    assert table["max_size"] >= table["size"] and table["target"] is not None


def test_without_a_look_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.rl.replay.tables.ReplayTables.info", lambda _: pytest.fail("nobody looks"))
    rl.Experiment(small_dqn(), CARTPOLE, steps=200).run(log="silent")


def test_it_stops_when_another_terminal_asks_for_it() -> None:
    rows: list[LogRow] = []

    def log(label: str, row: LogRow) -> None:
        rows.append(row)
        if len(rows) == 3:
            assert "it stops after the round" in ask_for("experiment", "stop")

    with pytest.raises(RunStopped, match=r"stopped by request after \d+ steps"):
        rl.Experiment(small_dqn(), CARTPOLE, steps=100_000).run(log=log)
    assert len(rows) == 3


def test_a_result_shows_the_curves_of_its_run() -> None:
    evaluation = rl.Evaluation(every_steps=100, episodes=2, max_steps=20)
    result = rl.Experiment(small_dqn(), CARTPOLE, steps=300, evaluation=evaluation).run(log="silent")
    view = result.view()
    assert view.has_ended and view.facts["env_steps"] == result.counters.steps
    assert view.panels["returns"]["steps"][-1] == result.counters.steps
    means = [each["mean"] for each in view.panels["returns"]["evaluations"]]
    assert means == [each.mean for each in result.evaluations] and means
    assert result.view({}).panels == {}
    html = result._repr_html_()
    assert "<strong>DQN</strong>" in html and html.count("<tr>") == 1 + len(means)


def test_a_program_is_shown_as_its_experiment_with_its_processes_once() -> None:
    experiment = rl.Experiment(rl.IMPALA(envs=2, unroll=5), CARTPOLE, steps=1_000_000)
    views: list[View] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            experiment.run(2, log="silent")
        except BaseException as error:
            errors.append(error)

    def is_seen() -> bool:
        views.extend(looks("experiment", PANELS))
        if not views:
            return False
        actors = views[-1].panels["staleness"]["actors"]
        return len(actors) == 2 and views[-1].panels["replay"]["cursor"] >= 2

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert within(PATIENCE_S, is_seen)
        assert looks("program") == []
        ask_for("experiment", "stop")
    finally:
        thread.join()
    view = views[-1]
    assert [type(error) for error in errors] == [RunStopped]
    assert {process.group for process in view.processes} == {"learner", "actors"} and len(view.processes) == 3
    assert view.facts["updates"] > 0 and "kill" in view.process_actions  # type: ignore[operator]
    for actor in view.panels["staleness"]["actors"]:
        assert sum(actor["counts"]) == actor["blocks"] + actor["dropped"] > 0
    points, table = view.panels["replay"]["points"], view.panels["replay"]["tables"]["replay"]
    assert points[-1]["inserts"] >= points[0]["inserts"] and table["target"] == 1.0
    assert view.panels["staleness"]["unit"] == "updates"
