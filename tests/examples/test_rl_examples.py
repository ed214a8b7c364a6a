"""Each example of reinforcement learning runs, in small, prints its result and draws its picture."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import PROGRAM_S

pytest.importorskip("gymnasium", reason="environments: pip install 'ropewalk[rl]'")
pytest.importorskip("torch", reason="agents: pip install 'ropewalk[rl]'")
pytest.importorskip("matplotlib", reason="draws the pictures; pip install matplotlib")

FOLDER = Path(__file__).parents[2] / "examples"
RunFile = Callable[..., list[str]]
PICTURE = ("--picture", "drawn/curve.png")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _draws_its_picture(tmp_path: Path) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    assert (tmp_path / "drawn/curve.png").read_bytes().startswith(b"\x89PNG")


def run(name: str, folder: Path, *arguments: str) -> list[str]:
    """The lines that an example prints as a program of its own."""
    command = [sys.executable, FOLDER / f"rl_{name}.py", *arguments, *PICTURE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PROGRAM_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_impala_balances_a_pole(run_file: RunFile) -> None:
    lines = run_file("rl_cartpole", "--steps", "3000", "--actors", "0", *PICTURE, tells_progress=True)
    assert lines[0].startswith("<experiment after 3,") and lines[1].startswith("without exploration: ")


def test_sac_swings_a_pendulum_and_its_policy_is_loaded_again(run_file: RunFile) -> None:
    lines = run_file("rl_pendulum", "--steps", "300", *PICTURE, tells_progress=True)
    assert lines[1].startswith("the policy in pendulum.safetensors scores -")


def test_a_clone_learns_to_land_from_recorded_flights(
    run_file: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("h5py", reason="Minari stores data sets by h5py: pip install 'ropewalk[minari]'")
    pytest.importorskip("Box2D", reason="LunarLander: pip install 'gymnasium[box2d]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    lines = run_file("rl_offline", "--flights", "2", "--updates", "50", *PICTURE, tells_progress=True)
    assert lines[0].startswith("2 flights, ")
    assert [line.split()[0] for line in lines[1:4]] == ["recorded", "cloned", "untrained"]


def test_lock_step_flies(run_file: RunFile) -> None:
    pytest.importorskip("Box2D", reason="LunarLander: pip install 'gymnasium[box2d]'")
    lines = run_file("rl_lunar_lander", "--steps", "1000", "--actors", "0", *PICTURE, tells_progress=True)
    assert lines[2].startswith("digest of the weights: ")


@pytest.mark.soak  # an actor that imports torch; that its number changes nothing, tests of agents show by default
def test_lock_step_lands_with_the_same_weights_for_one_actor_and_none(run_file: RunFile) -> None:
    pytest.importorskip("Box2D", reason="LunarLander: pip install 'gymnasium[box2d]'")
    digests = [
        run_file("rl_lunar_lander", "--steps", "4000", "--actors", actors, *PICTURE, tells_progress=True)[2]
        for actors in ("0", "1")
    ]
    assert digests[0] == digests[1] and digests[0].startswith("digest of the weights: ")


@pytest.mark.soak  # six processes, for a result that tests of inference judge
def test_an_inference_server_acts_for_all_actors(tmp_path: Path) -> None:
    lines = run("central_inference", tmp_path, "--steps", "3000")
    assert lines[1].startswith("updates between the choice of an action and its use: ")


@pytest.mark.soak  # a minute
def test_r2d2_remembers_what_dqn_cannot(tmp_path: Path) -> None:
    lines = run("memory", tmp_path)
    shares = {line.split()[0]: int(line.split()[2]) for line in lines if " answers " in line}
    assert shares["R2D2"] >= 95 and shares["DQN"] <= 60
