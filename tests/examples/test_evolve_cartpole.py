"""The main job: one seed gives one result, whatever the workers and whoever is killed; and CartPole is solved."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from tests.patience import PROGRAM_S

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("shared_session")

LoadExample = Callable[[str], types.ModuleType]
EXAMPLE = Path(__file__).parents[2] / "examples" / "evolve_cartpole.py"


def evolve(folder: Path, *arguments: str) -> tuple[int, list[str], dict[str, Any]]:
    """Run the example in a process of its own; its exit code, its lines, and its summary."""
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--json", *arguments], cwd=folder, capture_output=True, text=True, timeout=PROGRAM_S
    )
    # A run says where it is once a minute, if it takes that long.
    told = [line for line in done.stderr.splitlines() if ": generation " not in line]
    assert all("was killed by SIGKILL" in line for line in told), told
    assert bool(told) == ("--kill-workers" in arguments)
    *lines, last = done.stdout.splitlines()
    return done.returncode, lines, json.loads(last)


# --- the program ------------------------------------------------------------------------------------------------------

SHORT = ("--generations", "2", "--population", "16", "--seed", "5")


def test_one_seed_gives_one_result_for_any_number_of_workers_and_whoever_is_killed(
    load_example: LoadExample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load_example("evolve_cartpole")
    monkeypatch.chdir(tmp_path)
    code = example.main(["--json", *SHORT, "--workers", "1"])
    *lines, last = capsys.readouterr().out.splitlines()
    one = json.loads(last)
    assert (code, one["solved"], one["workers"], one["killed"], one["died"]) == (1, False, 1, 0, 0)
    assert one["episodes"] == 2 * (16 + 8) + 100
    assert sum(line.startswith("generation ") for line in lines) == 2
    assert any(one["digest"] in line for line in lines) and any("not solved" in line for line in lines)
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")

    class KillingStory(example.Story):
        def generation(self, number: int, **row: float) -> None:
            super().generation(number, **row)
            os.kill(random.choice([worker.pid for worker in pool.status().workers if worker.pid]), signal.SIGKILL)

    digests: list[str] = []
    for seed, story in ((5, KillingStory()), (6, example.Story())):
        with rw.Pool(3, preload=["gymnasium", "matplotlib.figure"]) as pool:
            parameters, final = example.evolve(pool, example.strategy(16, seed), 2, story)
            digests.append(hashlib.sha256(parameters.tobytes()).hexdigest()[:12])
            if seed == 5:
                assert pool.status().num_deaths >= 1  # the last one may not have been noticed yet
                assert final == one["mean_return"]
    assert digests[0] == one["digest"] != digests[1]


@pytest.mark.soak  # 90 seconds of two cores
def test_cartpole_is_solved_with_the_same_result_while_workers_are_killed(tmp_path: Path) -> None:
    code, lines, calm = evolve(tmp_path, "--workers", "2", "--picture", "")
    picture = tmp_path / "drawn" / "killed.png"
    killed_code, _, killed = evolve(tmp_path, "--workers", "3", "--kill-workers", "--picture", str(picture))
    assert (code, killed_code) == (0, 0)
    assert calm["solved"] and calm["mean_return"] >= 475 and any(line.startswith("solved") for line in lines)
    assert killed["killed"] >= 2 and calm["killed"] == calm["died"] == 0
    assert killed["died"] >= killed["killed"] - 1  # the pool may not have seen the last one yet
    same = ("digest", "mean_return", "generations", "episodes")
    assert [killed[name] for name in same] == [calm[name] for name in same]
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--population", "31"], "--population is 31; use an even number"),
        (["--population", "0"], "--population is 0"),
        (["--generations", "0"], "--generations is 0; use at least 1"),
        (["--seed", "-1"], "--seed is -1; use 0 or more"),
    ],
)
def test_wrong_arguments_are_refused_with_their_values(
    load_example: LoadExample, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        load_example("evolve_cartpole").main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err
