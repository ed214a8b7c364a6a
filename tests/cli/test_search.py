"""`ropewalk search`: a table or JSON for what ran, and words for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ropewalk.cli import app
from ropewalk.cli.search import parse_part
from ropewalk.errors import SearchInvalid
from ropewalk.tracking import open_store

pytestmark = pytest.mark.usefixtures("shared_session")

TRAIN = """
def train(run, x):
    for step in run.steps(3):
        run.log(score=x * step)

def other(run, x):
    run.log(loss=x)
"""
SPACE = "[parameters]\nx = { uniform = [0.0, 1.0] }\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train_cli.py").write_text(TRAIN)
    (tmp_path / "space.toml").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # tests run with -P, under which the folder of a script is not on the path
    monkeypatch.setenv("ROPEWALK_STORE", str(tmp_path / "runs.db"))
    return tmp_path


def run(*arguments: str) -> tuple[int, str, str]:
    command = ["search", *arguments, "--space", "space.toml", "--max-concurrent", "1"]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_search_prints_its_trials_as_json(folder: Path) -> None:
    code, output, errors = run(
        "train_cli.py:train", "--metric", "score", "--trials", "2", "--json", "--time-limit", "2h"
    )
    assert code == 0, errors
    records = json.loads(output)
    assert [record["state"] for record in records] == ["done", "done"]
    assert all(record["best"] == 3 * record["config.x"] for record in records)
    with open_store() as store:  # the code that is kept is that of the function, and not of this command
        (search,) = store.runs(kind="search")
        facts, kept = store.facts(search.id), store.artifacts(search.id)
    assert (facts["script"], facts["git"]) == (str(folder / "train_cli.py"), {})
    assert [(one.name, Path(one.path).read_text()) for one in kept] == [("code/train_cli.py", TRAIN)]


def test_what_the_function_prints_is_not_between_the_json(folder: Path) -> None:
    talks = TRAIN.replace("for step", "print('this is tried')\n    for step")
    (folder / "train_cli.py").write_text(f"{talks}print('this is imported')\n")
    code, output, errors = run("train_cli.py:train", "--metric", "score", "--trials", "1", "--json")
    assert code == 0 and len(json.loads(output)) == 1
    assert "this is imported" in errors and "this is tried" in errors


def test_a_function_that_asks_for_its_hyperparameters_needs_no_space(folder: Path) -> None:
    # `--space` was required, and with a space a trial may not ask.
    (folder / "train_cli.py").write_text(
        "def train(run):\n    return run.suggest_float('x', 2, 3)\ndef needs(run, x):\n    return x\n"
    )
    options = ("--metric", "score", "--trials", "1", "--max-concurrent", "1")
    found = CliRunner().invoke(app, ["search", "train_cli.py:train", *options, "--json"])
    assert found.exit_code == 0, found.stderr
    (trial,) = json.loads(found.stdout)
    assert 2 <= trial["config.x"] == trial["best"]
    refused = CliRunner().invoke(app, ["search", "train_cli.py:needs", *options])
    assert refused.exit_code == 2 and "there is no space; give one, or ask for it in needs" in refused.stderr


def test_a_metric_that_is_no_number_is_null_in_json(folder: Path) -> None:
    (folder / "train_cli.py").write_text("def train(run, x):\n    run.log(score=float('nan'))\n")
    code, output, errors = run("train_cli.py:train", "--metric", "score", "--trials", "1", "--json")
    assert code == 0 and "NaN" not in output, errors
    assert json.loads(output)[0]["score"] is None


def test_a_search_prints_a_table_and_takes_options_of_scheduler_and_sampler(folder: Path) -> None:
    code, output, errors = run(
        "train_cli.py:train", "--metric", "score", "--mode", "min", "--scheduler", "stopping_asha R=3 eta=3",
        "--sampler", "grid points=2", "--plot", "picture.png",
    )  # fmt: skip
    assert code == 0, errors
    head, *rows = output.splitlines()
    assert head.split() == ["trial", "state", "step", "attempts", "best", "score", "x"] and len(rows) == 2
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train_cli.py:tran", "--metric", "score", "--trials", "1"), "did you mean train?"),
        (("train_cli.py", "--metric", "score", "--trials", "1"), "is named as FILE.py:FUNCTION"),
        (("train_cli.py:train", "--metric", "score"), "say how many"),
        (("train_cli.py:train", "--metric", "score", "--time-limit", "1:30"), 'must be a time such as "2h"'),
        (("train_cli.py:train", "--metric", "score", "--trials", "1", "--plot", "a.xyz"), "ends in .png, .pdf, .svg"),
        (("train_cli.py:train", "--metric", "score", "--trials", "1", "--plot", "no/a.png"), "a folder that is there"),
        (
            ("train_cli.py:train", "--metric", "a", "--metric", "b", "--trials", "1", "--scheduler", "asha R=3"),
            "2: a, b",
        ),
        (("train_cli.py:train", "--metric", "score", "--trials", "1", "--scheduler", "asha"), "needs the option 'R'"),
        (("train_cli.py:train", "--metric", "score", "--trials", "1", "--scheduler", "asha R"), "NAME=VALUE"),
        (("train_cli.py:train", "--metric", "score", "--trials", "1", "--sampler", "tpee"), "did you mean 'tpe'?"),
    ],
)
def test_what_cannot_be_is_said_with_exit_code_2(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    code, _, errors = run(*arguments)
    assert code == 2 and words in errors


def test_a_search_that_fails_says_why_with_exit_code_1(folder: Path) -> None:
    code, _, errors = run("train_cli.py:other", "--metric", "score", "--trials", "2")
    assert code == 1 and "without a value of 'score': it logged 'loss'" in errors
    assert errors.count("it logged") == errors.count("Log the metric of the search") == 1


def test_a_picture_that_cannot_be_written_does_not_lose_the_results(folder: Path) -> None:
    """The search was complete, and printed a traceback in place of its table."""
    (folder / "picture.png").mkdir()
    code, output, errors = run("train_cli.py:train", "--metric", "score", "--trials", "1", "--plot", "picture.png")
    assert code == 1 and len(output.splitlines()) == 2
    assert "the search is complete, but cannot be drawn to picture.png" in errors and "Traceback" not in errors


def test_options_of_a_part_are_values_of_python_or_words() -> None:
    assert parse_part("tpe n_startup_trials=20 flag=True name=x") == (
        "tpe",
        {"n_startup_trials": 20, "flag": True, "name": "x"},
    )
    assert parse_part("") == ("", {})
    with pytest.raises(SearchInvalid, match="NAME=VALUE, not 'R'"):
        parse_part("asha R")
