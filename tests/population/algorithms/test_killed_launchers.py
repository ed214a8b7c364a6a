"""Every algorithm: its launcher is killed in the middle, and the next one comes to the result of the unbroken run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.population.algorithms import ALGORITHMS

SCRIPT = """
import hashlib, os, pathlib, signal, sys, threading
import ropewalk as rw
from ropewalk.population import evaluate
from tests.population.algorithms import test_conformance

name, folder, kill_in = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])

def report(generation, **row):
    if generation == kill_in:
        threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGKILL)).start()

if __name__ == "__main__":
    suite = getattr(test_conformance, "Test" + name)()
    suite.folders = iter([folder / f"states-{number}" for number in range(9)])
    algorithm = suite.make_algorithm()
    with rw.Pool(2, preload=["numpy"]) as pool:
        fitness = suite._fitness(algorithm)
        run = evaluate(algorithm, fitness, pool, generations=8, checkpoint=folder / "run", report=report)
    state = suite.state_of(run.algorithm)
    print(len(run.table), hashlib.sha256(state).hexdigest())
"""


@pytest.mark.soak
@pytest.mark.parametrize("name", [place.partition(":")[2] for place in ALGORITHMS.values()])
def test_a_killed_run_comes_to_the_result_of_the_unbroken_one(name: str, tmp_path: Path) -> None:
    if name == "PBTReplay":
        pytest.skip("the run that finds its schedule is not the same one after a kill: test_pbt_replay has its own")

    def run(folder: str, kill_in: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", SCRIPT, name, str(tmp_path / folder), str(kill_in)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    killed = run("killed", 3)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list((tmp_path / "killed" / "run").glob("generation-*.state"))
    resumed, unbroken = run("killed", 0), run("unbroken", 0)
    assert resumed.returncode == unbroken.returncode == 0, resumed.stderr + unbroken.stderr
    assert resumed.stdout == unbroken.stdout
