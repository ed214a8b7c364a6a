"""The main job: one seed gives one result, whatever the workers and whoever is killed; and CartPole is solved."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
np = pytest.importorskip("numpy")

EXAMPLE = Path(__file__).parents[2] / "examples" / "evolve_cartpole.py"


@pytest.fixture(scope="module")
def example() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("evolve_cartpole", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def evolve(folder: Path, *arguments: str) -> tuple[int, list[str], dict[str, Any]]:
    """Run the example in a process of its own; its exit code, its lines, and its summary."""
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--json", *arguments], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    return done.returncode, lines, json.loads(last)


# --- the algorithm ----------------------------------------------------------------------------------------------------


def test_ranks_are_centred_and_equal_returns_share_theirs(example: types.ModuleType) -> None:
    ranks = example.centred_ranks(np.array([[10.0, 500.0], [500.0, 20.0], [500.0, 30.0]]))
    assert ranks == pytest.approx(np.array([[0, 4], [4, 1], [4, 2]]) / 5 - 0.5)
    assert ranks.sum() == pytest.approx(0)
    assert example.centred_ranks(np.full((4, 2), 9.0)) == pytest.approx(np.zeros((4, 2)))


def test_a_pair_that_ties_says_nothing_and_a_winner_pulls_towards_its_noise(example: types.ModuleType) -> None:
    tasks = [(0, example.PERTURBATION, 1, index) for index in range(2)]
    gradient = example.estimate_gradient(np.array([[50.0, 10.0], [20.0, 20.0]]), tasks)
    noise = example.draw(tasks[0])[0]
    assert gradient @ noise / np.linalg.norm(gradient) / np.linalg.norm(noise) == pytest.approx(1)


def test_the_gradient_climbs_a_known_slope(example: types.ModuleType) -> None:
    slope = np.random.default_rng(1).standard_normal(example.SIZE)
    tasks = [(0, example.PERTURBATION, 1, index) for index in range(512)]
    heights = [float(example.draw(task)[0] @ slope) for task in tasks]
    gradient = example.estimate_gradient(np.array([[height, -height] for height in heights]), tasks)
    assert gradient @ slope / np.linalg.norm(gradient) / np.linalg.norm(slope) > 0.8


def test_every_task_has_a_stream_of_its_own(example: types.ModuleType) -> None:
    tasks = [(seed, purpose, generation, index)
             for seed in (0, 1) for purpose in range(4) for generation in (0, 1, 2) for index in (0, 1, 2)]  # fmt: skip
    draws = {(example.draw(task)[0].tobytes(), example.draw(task)[1]) for task in tasks}
    assert len(draws) == len(tasks)
    assert example.draw(tasks[5])[0].tobytes() == example.draw(tasks[5])[0].tobytes()


def test_a_task_is_small_and_its_result_is_two_returns(example: types.ModuleType) -> None:
    parameters = np.zeros(example.SIZE)
    task = (3, example.PERTURBATION, 1, 7)
    index, plus, minus = example.evaluate_pair(parameters, task)
    assert index == 7 and 8 <= plus <= 500 and 8 <= minus <= 500
    assert (index, plus, minus) == example.evaluate_pair(parameters, task)


# --- the program ------------------------------------------------------------------------------------------------------

SHORT = ("--generations", "3", "--population", "32", "--seed", "5")


def test_one_seed_gives_one_result_for_any_number_of_workers(tmp_path: Path) -> None:
    code, lines, one = evolve(tmp_path, *SHORT, "--workers", "1")
    _, _, three = evolve(tmp_path, *SHORT, "--workers", "3", "--picture", "")
    _, _, other = evolve(tmp_path, *SHORT[:-1], "6", "--workers", "3", "--picture", "")
    assert (code, one["solved"], one["workers"], three["workers"]) == (1, False, 1, 3)
    assert one["digest"] == three["digest"] != other["digest"]
    assert one["mean_return"] == three["mean_return"]
    assert one["episodes"] == 3 * (32 + 8) + 100
    assert sum(line.startswith("generation ") for line in lines) == 3
    assert any(one["digest"] in line for line in lines) and any("not solved" in line for line in lines)
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(200)
def test_cartpole_is_solved_with_the_same_result_while_workers_are_killed(tmp_path: Path) -> None:
    code, lines, calm = evolve(tmp_path, "--workers", "2", "--picture", "")
    picture = tmp_path / "killed.png"
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
def test_wrong_arguments_are_refused_with_their_values(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLE, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr
