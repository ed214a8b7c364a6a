"""Population based training survives that a host is lost, or that the launcher is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import ropewalk as rw
from ropewalk.population.algorithms.pbt import PBT
from ropewalk.population.algorithms.pbt_member import PBTMember
from ropewalk.population.evaluating import evaluate
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.modes import SteadyMode
from ropewalk.population.run_result import RunResult
from ropewalk.population.trial import Trial
from tests.patience import PROGRAM_S
from tests.population.algorithms.surrogate import SPACE, train_with_noise
from tests.population.neighbours import lose_host, session_of_neighbours


def best_state(run: RunResult) -> Any:
    assert run.best is not None
    return run.best.state


def train_and_say_where(member: PBTMember, trial: Trial) -> Outcome:
    return Outcome(train_with_noise(member, trial), values={"agent": float(os.getppid())})


class WatchesAgents(PBT):
    """Knows the agent under which each member was trained last."""

    agents: dict[int, int]

    def tell(self, candidates: Any, outcomes: Any) -> None:
        for interval, outcome in zip(candidates, outcomes, strict=True):
            if outcome.values:
                self.agents[interval.member] = int(outcome.values["agent"])
        super().tell(candidates, outcomes)


def test_members_start_anew_if_all_that_was_held_is_lost_and_so_they_do_in_a_replay() -> None:
    def make() -> PBT:
        return PBT(SPACE, population=3, interval=2, burn_in=4, synchronous=True)

    def lose_all(generation: int, **row: float) -> None:
        if generation == 2:
            depots = [each for each in psutil.Process().children(recursive=True) if "depot" in each.name()]
            assert len(depots) == 1
            depots[0].kill()

    with rw.Pool(2) as pool:
        run = evaluate(make(), train_with_noise, pool, generations=5, report=lose_all, progress=False)
        assert [mutation.reason for mutation in run.algorithm.mutations].count("restart") == 3
        assert run.best.steps == 4
        again = evaluate(make(), train_with_noise, replay=run.decisions, progress=False)
        assert again.algorithm.mutations == run.algorithm.mutations
        assert np.array_equal(best_state(again), best_state(run))


@pytest.mark.soak  # four agents and their workers, each with TLS
def test_members_of_a_lost_host_go_on_from_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of_neighbours(monkeypatch) as session, rw.Pool(4, session=session) as pool:
        algorithm = WatchesAgents(SPACE, population=8, interval=2, burn_in=10**9, synchronous=True)
        algorithm.agents = {}
        lost: list[int] = []

        def lose_one(generation: int, **row: float) -> None:
            if len(set(algorithm.agents.values())) > 1 and not lost:
                agent = algorithm.agents[0]
                lost.extend(member for member, its in algorithm.agents.items() if its == agent)
                lose_host(psutil.Process(agent))

        run = evaluate(algorithm, train_and_say_where, pool, generations=6, report=lose_one, progress=False)
        assert lost
        assert {mutation.member for mutation in algorithm.mutations} >= set(lost)  # on a busy machine, more are lost
        assert {mutation.reason for mutation in algorithm.mutations} == {"lost"}
        assert "state lost: that of member 0" in algorithm.mutations[0].why
        assert best_state(run).shape == (2,)


class Stopped(Exception):
    pass


def test_an_asynchronous_run_goes_on_with_what_was_under_way(tmp_path: Path) -> None:
    def go_on(name: str, **options: Any) -> RunResult:
        algorithm = PBT(SPACE, population=4, interval=2, steps=12, folder=tmp_path / name)
        return evaluate(algorithm, train_with_noise, mode=SteadyMode(ahead=3), progress=False, **options)

    def stop(generation: int, **row: float) -> None:
        if generation == 3:
            raise Stopped

    with pytest.raises(Stopped):
        go_on("members", checkpoint=tmp_path, report=stop)
    run, unbroken = go_on("members", checkpoint=tmp_path), go_on("unbroken")
    assert run.evaluations == unbroken.evaluations
    assert run.algorithm.mutations == unbroken.algorithm.mutations != []
    assert np.array_equal(best_state(run), best_state(unbroken))


RUN = """
import os, signal, sys
from pathlib import Path
import ropewalk as rw
from ropewalk.population.algorithms.pbt import PBT
from ropewalk.population.evaluating import evaluate
from tests.population.algorithms.surrogate import SPACE, train_with_noise

def die(generation, **row):
    if generation == 4:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    algorithm = PBT(SPACE, population=5, interval=2, synchronous=True, folder=folder / "members")
    with rw.Pool(2) as pool:
        evaluate(algorithm, train_with_noise, pool, generations=8, checkpoint=folder, report=die, progress=False)
"""


@pytest.mark.soak  # a process of its own, and each interval waits for a disk
def test_a_run_goes_on_from_its_checkpoint_after_the_launcher_was_killed(tmp_path: Path) -> None:
    def make(name: str) -> PBT:
        return PBT(SPACE, population=5, interval=2, synchronous=True, folder=tmp_path / name)

    (tmp_path / "run.py").write_text(RUN)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    killed = subprocess.run([sys.executable, tmp_path / "run.py", tmp_path], env=environment, timeout=PROGRAM_S)
    assert killed.returncode == -signal.SIGKILL
    run = evaluate(make("members"), train_with_noise, generations=8, checkpoint=tmp_path, progress=False)
    assert run.evaluations == 8 * 5 and len(run.table) == 8
    unbroken = evaluate(make("unbroken"), train_with_noise, generations=8, progress=False)
    assert run.algorithm.mutations == unbroken.algorithm.mutations != []
    assert run.algorithm.schedule() == unbroken.algorithm.schedule()
    assert np.array_equal(best_state(run), best_state(unbroken))
