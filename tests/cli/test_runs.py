"""`ropewalk runs`: for people, for programs, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from ropewalk.cli import app, command_line, runs, runs_logs
from ropewalk.cli.runs_tables import as_table, list_rows
from ropewalk.tracking import RunStore, open_store
from ropewalk.tracking.kept_output import OUTPUT
from ropewalk.tracking.records import (
    ArtifactKept,
    AttemptBegan,
    AttemptEnded,
    CheckpointKept,
    EventHappened,
    NoteAdded,
    StateIs,
)
from tests.tracking.store.making import NOW, begin, logged, new_store, of, running

RED = "\x1b[31m"
PACKAGES = {f"p{number}": "1" for number in range(99)}


def run(*arguments: str, wrong: int = 0) -> Any:
    """What a command prints: the JSON, or the text; for an error, its message."""
    result = CliRunner().invoke(app, ["runs", *arguments], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == wrong, result.stderr
    if wrong:
        assert result.stdout == ""
        return result.stderr
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    """Three runs: a script that is done, a trial that failed, and the search that it belongs to."""
    with new_store(tmp_path) as store:
        monkeypatch.setenv("ROPEWALK_STORE", store.where)
        begin(
            store, "aa11", AttemptBegan(1, "h1", 7, NOW, 0.0), *logged("loss", [4.0, 2.0, math.nan, 1.0]),
            *logged("cpu", [50.0], group="system"), NoteAdded(f"looks {RED}good", NOW),
            CheckpointKept(3.0, "/c/3", 2**21, NOW, 0.5), ArtifactKept("plot.png", "/r/p", "image", 2048, "", NOW),
            EventHappened("retry", "after a death", NOW), EventHappened("decision", "", NOW, {"line": {}}),
            AttemptEnded(1, "failed", NOW + 60, "Traceback\n  in train\nValueError: no", "ValueError", 3.0),
            StateIs("done", NOW + 90), name=f"brisk{RED}", config={"lr": 0.1, "model": {"depth": 2, "act": "relu"}},
            facts={"argv": ["train.py", "--fast"], "git": {"commit": "abc"}, "packages": PACKAGES}, labels=["nightly"],
        )  # fmt: skip
        begin(store, "bb22", name="calm", kind="search", time=NOW + 5)
        begin(
            store, "cc33", *logged("loss", [3.0]), StateIs("failed", NOW + 9, "ValueError: no"), name="wry",
            kind="trial", parent="bb22", config={"lr": 0.2, "model": {"depth": 2}}, project="other", time=NOW + 7,
        )  # fmt: skip
        yield store


# --- list -------------------------------------------------------------------------------------------------------------


def test_runs_are_listed_without_trials_and_the_newest_first(store: RunStore) -> None:
    lines = run("list").splitlines()
    assert [line.split()[0] for line in lines] == ["id", "bb22", "aa11"]
    assert "loss 1" in lines[2] and "1m30s" in lines[2] and lines[2].endswith("nightly")


def test_what_is_not_shown_is_said(store: RunStore) -> None:
    result = CliRunner().invoke(app, ["runs", "list", "-n", "1"])
    assert result.stderr == "1 more: --limit 2; 1 trial not shown: --all, --kind trial or --parent SEARCH\n"


def test_a_program_gets_all_runs_and_is_told_of_those_that_it_does_not_get(store: RunStore) -> None:
    """JSON ended after 50 runs without a word."""
    for number in range(60):
        begin(store, f"dd{number:02}", name=f"n{number}", time=NOW + 10 + number)
    result = CliRunner().invoke(app, ["runs", "list", "--json"])
    assert len(json.loads(result.stdout)) == 62
    assert result.stderr == "1 trial not shown: --all, --kind trial or --parent SEARCH\n"
    result = CliRunner().invoke(app, ["runs", "list", "--json", "--all", "-n", "2"])
    assert (len(json.loads(result.stdout)), result.stderr) == (2, "61 more: --limit 63\n")


def test_runs_are_listed_in_the_order_of_a_metric(store: RunStore) -> None:
    begin(store, "dd44", *logged("loss", [math.nan]), name="lost", time=NOW + 9)
    for order, ids in (("loss", ["aa11", "cc33", "bb22", "dd44"]), ("-loss", ["cc33", "aa11", "bb22", "dd44"])):
        found = [row["id"] for row in run("list", "--all", "-m", "loss", "--order", order, "--json")]
        assert found[:2] == ids[:2] and set(found[2:]) == set(ids[2:]), "those without a number come last"
    assert "not 'loss'; by a metric: --metric NAME --order NAME" in run("list", "--order", "loss", wrong=2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--all"], ["cc33", "bb22", "aa11"]),
        (["--parent", "calm"], ["cc33"]),
        (["--kind", "trial"], ["cc33"]),
        (["--project", "digits", "--order", "created"], ["aa11", "bb22"]),
        (["--state", "done", "--state", "queued", "-n", "1"], ["bb22"]),
        (["--label", "nightly"], ["aa11"]),
        (["--text", "RELU"], ["aa11"]),
        (["--archived"], []),
    ],
)
def test_runs_are_chosen(store: RunStore, options: list[str], expected: list[str]) -> None:
    assert [one["id"] for one in run("list", "--json", *options)] == expected


def test_a_metric_gets_a_column(store: RunStore) -> None:
    head, *rows = run("list", "--all", "--metric", "loss", "-m", "none").splitlines()
    assert head.split()[7:9] == ["loss", "none"]
    assert [row.split()[-2:] for row in rows] == [["3", "-"], ["-", "-"], ["-", "nightly"]]


def test_a_list_for_programs_has_what_a_run_was_given(store: RunStore) -> None:
    (found,) = run("list", "--json", "--label", "nightly")
    assert (found["state"], found["config"]["model"], found["owner"]) == ("done", {"depth": 2, "act": "relu"}, None)
    assert (found["metrics"], found["labels"], found["created"]) == ({"loss": 1.0}, ["nightly"], NOW)


def test_an_empty_list_says_so(store: RunStore) -> None:
    result = CliRunner().invoke(app, ["runs", "list", "--project", "none"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no run is like that\n")


# --- show, compare, export --------------------------------------------------------------------------------------------


def test_a_run_is_shown_with_all_that_is_known_of_it(store: RunStore) -> None:
    text = run("show", "aa")
    for expected in (
        "aa11  brisk\\x1b[31m  (script of digits)",
        "labels: nightly",
        "argv: train.py --fast",
        "git.commit: abc",
        "  model.depth  2",
        "  system  cpu   ▄",
        "  1  failed   h1      7          0",
        "ValueError: no",
        "     3  2 MiB    0.5",
        "plot.png  image  2 KiB",
        "1 decision of the search: --json shows all",
        "retry: after a death",
        "  looks \\x1b[31mgood",
    ):
        assert expected in text
    assert RED not in text and "p98" not in text and "decision:" not in text
    loss = next(line for line in text.splitlines() if line.strip().startswith("loss"))
    assert loss.split() == ["loss", "█▃", "▁", "1", "4", "1", "4", "2.3333", "4", "(1", "NaN)"]


def test_the_newest_traceback_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_store(tmp_path) as store:
        monkeypatch.setenv("ROPEWALK_STORE", store.where)
        ends = [f"Traceback\n  in train, line {number}\nValueError: no{RED}" for number in (1, 2)] + [
            "killed by SIGKILL"
        ]
        records = [
            record
            for number, cause in enumerate(ends, 1)
            for record in (
                AttemptBegan(number, "h1", 7, NOW, 0.0),
                AttemptEnded(number, "failed", NOW + 60, cause, "E", 3.0),
            )
        ]
        begin(store, "dd44", *records)
    text = run("show", "dd44")
    assert "\n\ncause of attempt 2\n  Traceback\n    in train, line 2\n  ValueError: no\\x1b[31m" in text
    assert "in train, line 1" not in text


def test_on_a_terminal_there_are_tables_of_the_same_content(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "Console", lambda **_: Console(force_terminal=True, width=300, no_color=True))
    shown = run("show", "aa11")
    for line in run_lines("show", "aa11"):
        assert all(word in shown for word in line.split())
    assert RED not in shown
    assert all(word in run("list", "--all") for word in ("brisk", "calm", "wry", "failed"))
    assert "relu" in run("compare", "aa11", "cc33")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_text_of_a_run_looks_like_a_part_of_the_report(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of a note, and of why a run has ended, stood at the margin: each could pass for a line of ours."""
    if is_terminal:
        monkeypatch.setattr(runs, "Console", lambda **_: Console(force_terminal=True, width=300, no_color=True))
    forged = "fine\nlabels: approved\n\nmetrics\n  loss 0.01\n\nnote, 2026-01-01 00:00:00\nlooks good"
    with new_store(tmp_path) as store:
        monkeypatch.setenv("ROPEWALK_STORE", store.where)
        begin(store, "dd44", NoteAdded(forged, NOW), StateIs("failed", NOW, forged),
              AttemptBegan(1, "h", 7, NOW), AttemptEnded(1, "failed", NOW, forged, "", 1.0))  # fmt: skip
    lines = run("show", "dd44").splitlines()
    assert sum("labels: approved" in line for line in lines) == 3
    at_the_margin = [line for line in lines if line.strip() and not line.startswith(" ")]
    assert not any(line.startswith(("labels", "metrics", "looks", "note, 2026-01-01")) for line in at_the_margin), lines


@pytest.mark.parametrize("width", [80, 200])
def test_no_id_and_no_moment_is_folded_on_a_narrow_terminal(width: int) -> None:
    """At 80 columns an id took three lines, from which nobody can copy it."""
    head = ("id", "name", "project", "kind", "state", "begun", "took", "metrics", "labels")
    row = ("0acd15d09bbe81a2", "notebook-0acd15", "nbt", "script", "stopped", "2026-11-29 09:49:01", "1.1 s", "x 9", "")
    shown = io.StringIO()
    Console(file=shown, width=width).print(as_table(([head, row], {6})))
    assert all(cell in shown.getvalue() for cell in row), shown.getvalue()


def test_a_search_is_shown_with_the_states_of_its_trials(store: RunStore) -> None:
    assert "runs that belong to it: 1 failed (ropewalk runs list --parent bb22)" in run("show", "calm")
    assert "failed since" in (text := run("show", "wry")) and ": ValueError: no" in text and "parent: bb22" in text


def test_the_number_of_the_best_trial_has_no_mean_and_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_store(tmp_path) as store:
        monkeypatch.setenv("ROPEWALK_STORE", store.where)
        begin(store, "dd44", *logged("best trial", [3.0, 8.0]), kind="search")
        begin(store, "ee55", *logged("best trial", [3.0, 8.0]), kind="script")
    (row,) = (line for line in run("show", "dd44").splitlines() if "best trial" in line)
    assert row.split() == ["best", "trial", "8", "2", "-", "-", "-", "2"]
    assert "5.5" in run("show", "ee55"), "a metric of a user's own may have any name"


def test_facts_that_say_nothing_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_store(tmp_path) as store:
        monkeypatch.setenv("ROPEWALK_STORE", store.where)
        begin(store, "ff66", facts={"cwd": "/here", "git": {}})
    text = run("show", "ff66")
    assert "cwd: /here" in text and "git:" not in text


def test_a_run_for_programs_has_everything_but_points(store: RunStore) -> None:
    found = run("show", "aa11", "--json")
    assert found["facts"]["packages"]["p98"] == "1"
    loss = next(one for one in found["series"] if one["name"] == "loss")
    assert (loss["count"], loss["num_nan"], loss["min"], loss["last"]) == (4, 1, 1.0, 1.0)
    assert found["attempts"][0]["cause"].startswith("Traceback")
    assert (found["checkpoints"][0]["step"], found["notes"][0]["text"]) == (3.0, f"looks {RED}good")
    assert run("show", "bb22", "--json")["children"] == ["cc33"]


def test_numbers_that_json_lacks_are_null_or_text(store: RunStore) -> None:
    begin(store, "dd44", *logged("x", [math.nan]), *logged("y", [math.inf]), config={"clip": -math.inf})
    (found,) = run("list", "--json", "--text", "dd44")
    assert (found["metrics"], found["config"]) == ({"x": None, "y": "inf"}, {"clip": "-inf"})


def test_a_comparison_shows_what_differs(store: RunStore) -> None:
    rows = [line.split() for line in run("compare", "aa11", "cc33").splitlines()]
    assert rows == [
        ["aa11", "cc33"],
        ["name", "brisk\\x1b[31m", "wry"],
        ["state", "done", "failed"],
        ["lr", "0.1", "0.2"],
        ["model.act", "relu", "-"],
        ["loss", "1", "3"],
    ]
    assert run("compare", "aa11", "cc33", "--json")["config"] == {"lr": [0.1, 0.2], "model.act": ["relu", None]}
    assert run("compare", "aa11", "cc33", "--json", "--all")["config"]["model.depth"] == [2, 2]
    assert run("compare", "aa11", "cc33", "--json", "--group", "system")["metrics"] == {"cpu": [50.0, None]}


def test_metrics_of_groups_are_listed_and_compared(store: RunStore) -> None:
    # `run.log(accuracy=a, group="validation")` is what the documentation advises, and neither command showed it.
    begin(
        store, "dd44", *logged("accuracy", [0.5, 0.75], group="validation"), *logged("loss", [2.0]),
        *logged("cpu", [9.0], group="system"),
    )  # fmt: skip
    (line,) = (line for line in run("list", "--text", "dd44").splitlines() if line.startswith("dd44"))
    assert "loss 2 validation/accuracy 0.75" in line and "cpu" not in line
    asked = run("list", "--text", "dd44", "--metric", "validation/accuracy", "-m", "system/cpu").splitlines()[1]
    assert asked.split()[-2:] == ["0.75", "9"]
    assert run("compare", "aa11", "dd44", "--json")["metrics"] == {
        "loss": [1.0, 2.0], "validation/accuracy": [None, 0.75]
    }  # fmt: skip


def test_points_are_exported_as_csv_and_as_lines_of_json(store: RunStore, tmp_path: Path) -> None:
    output = tmp_path / "points.csv"
    assert run("export", "aa11", "wry", "--output", str(output)) == ""
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert [(row["run"], row["group"], row["value"]) for row in rows] == [
        ("aa11", "", "4.0"), ("aa11", "", "2.0"), ("aa11", "", "nan"), ("aa11", "", "1.0"), ("aa11", "system", "50.0"),
        ("cc33", "", "3.0"),
    ]  # fmt: skip
    lines = [json.loads(line) for line in run("export", "aa11", "--format", "jsonl", "--group", "").splitlines()]
    assert [(line["step"], line["value"]) for line in lines] == [(1, 4), (2, 2), (3, None), (4, 1)]
    (everything,) = json.loads(run("export", "aa11", "--format", "json"))
    assert run("export", "aa11", "--json") == [everything]
    assert everything == run("show", "aa11", "--json")
    assert "--format is one of csv, jsonl, json, not 'xml'" in run("export", "aa11", "--format", "xml", wrong=2)
    assert run("export", "aa11", "--json", "--format", "json") == run("export", "aa11", "--json")
    told = run("export", "aa11", "--json", "--format", "csv", wrong=2)  # it wrote JSON into the file for curves
    assert "--json is the same as --format json, and --format csv was given, too" in told
    assert "cannot be written" in run("export", "aa11", "-o", str(tmp_path / "none" / "x"), wrong=1)


def test_names_of_others_neither_act_on_the_terminal_nor_in_a_spreadsheet(store: RunStore) -> None:
    name = "\x1b]0;title\x07\nforged: line"
    begin(store, "ee55", *logged(name, [1.0]), *logged("=HYPERLINK(1)", [2.0], group="@g"), name=name)
    for arguments, wrong in ((("export",), 0), (("show",), 0), (("fork",), 2), (("pause",), 2)):
        shown = run(*arguments, "ee55", wrong=wrong)
        assert "\x1b" not in shown and "\x07" not in shown and "\nforged" not in shown, shown
    names = [(row["group"], row["name"]) for row in csv.DictReader(run("export", "ee55").splitlines())]
    assert names == [("", "\\x1b]0;title\\x07\\nforged: line"), ("'@g", "'=HYPERLINK(1)")]


# --- archive, delete --------------------------------------------------------------------------------------------------


def test_runs_are_archived_and_shown_again(store: RunStore) -> None:
    assert run("archive", "calm", "aa11", "--json") == {"archived": ["bb22", "aa11"]}
    assert run("list", "--json") == []
    assert [one["id"] for one in run("list", "--json", "--archived")] == ["bb22", "aa11"]
    assert run("archive", "calm", "--undo") == "unarchived: bb22\n"
    assert [one["id"] for one in run("list", "--json")] == ["bb22"]


def test_runs_are_labelled_and_noted_after_they_have_ended(store: RunStore) -> None:
    assert run("label", "paper", "calm", "aa11", "--json") == {"labelled": ["bb22", "aa11"]}
    assert {one["id"] for one in run("list", "--json", "--label", "paper")} == {"aa11", "bb22"}
    assert run("label", "paper", "calm", "--remove") == "no longer labelled: bb22\n"
    assert [one["id"] for one in run("list", "--json", "--label", "paper")] == ["aa11"]
    assert run("note", "calm", "the baseline") == "noted: bb22\n"
    assert [note.text for note in store.notes("bb22")][-1:] == ["the baseline"]


def test_the_runs_of_a_user_are_listed(store: RunStore) -> None:
    begin(store, "dd44", facts={"user": "ada"}, name="hers")
    begin(store, "dd44-1", facts={}, kind="trial", parent="dd44")
    assert [one["id"] for one in run("list", "--json", "--user", "ada")] == ["dd44"]
    assert {one["id"] for one in run("list", "--json", "--user", "ada", "--all")} == {"dd44", "dd44-1"}
    rows, _ = list_rows(store.runs(user="ada"), {}, (), 0.0, {"dd44": "ada", "dd44-1": "ada"})
    assert [row[-1] for row in rows] == ["user", "ada", "ada"]


def test_runs_are_deleted_without_asking_only_with_yes(store: RunStore) -> None:
    assert "say --yes" in run("delete", "calm", wrong=2)
    assert run("delete", "calm", "wry", "--yes", "--json") == {"deleted": ["bb22", "cc33"]}
    assert [one.id for one in store.runs()] == ["aa11"]


@pytest.mark.parametrize(("answer", "num_left"), [("y\n", 1), ("n\n", 3)])
def test_on_a_terminal_a_deletion_is_asked_for(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, answer: str, num_left: int
) -> None:
    monkeypatch.setattr(runs, "_can_ask", lambda: True)
    result = CliRunner().invoke(app, ["runs", "delete", "calm"], input=answer)
    assert "bb22  calm  queued, and 1 run that belong to it" in result.stderr
    assert len(store.runs()) == num_left


def test_nothing_is_deleted_if_one_of_several_is_unknown_or_runs(store: RunStore) -> None:
    assert "did you mean calm" in run("delete", "aa11", "calmm", "--yes", wrong=2)
    running(store, "dd44", parent="bb22")
    assert "run dd44 of bb22 cannot be deleted while it is running" in run("delete", "bb22", "--yes", wrong=1)
    assert len(store.runs()) == 4


# --- logs -------------------------------------------------------------------------------------------------------------


def output_of(store: RunStore, tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "dd44"
    (folder / OUTPUT).mkdir(parents=True)
    for number in (1, 2, 10):
        (folder / OUTPUT / f"{number}.txt").write_text(f"first of {number}\n{RED}last\x07 of {number}\n")
    begin(store, "dd44", kind="trial", folder=str(folder))
    return folder / OUTPUT


def test_output_is_shown_by_attempt(store: RunStore, tmp_path: Path) -> None:
    output_of(store, tmp_path)
    assert run("logs", "dd44", "-n", "1") == "[1] last\\x07 of 1\n[2] last\\x07 of 2\n[10] last\\x07 of 10\n"
    assert run("logs", "dd44", "--attempt", "2") == "[2] first of 2\n[2] last\\x07 of 2\n"
    assert "has output of the attempts 1, 2, 10" in run("logs", "dd44", "--attempt", "3", wrong=1)
    (line,) = [json.loads(line) for line in run_lines("logs", "dd44", "--attempt", "1", "-n", "1", "--json")]
    assert line == {"attempt": 1, "line": f"{RED}last\x07 of 1"}


def test_colours_of_output_are_left_out_if_none_are_wanted(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output_of(store, tmp_path)
    monkeypatch.setattr(command_line, "is_terminal", lambda _: True)
    shown = {
        no_color: CliRunner().invoke(app, ["runs", "logs", "dd44", "-n", "1"], env={"NO_COLOR": no_color}).stdout
        for no_color in ("", "1")
    }
    assert RED in shown[""] and RED not in shown["1"]


def run_lines(*arguments: str) -> list[str]:
    return CliRunner().invoke(app, ["runs", *arguments]).stdout.splitlines()


def test_a_run_without_output_says_where_it_is(store: RunStore) -> None:
    assert "was a script, whose output is wherever it was started" in run("logs", "aa11", wrong=1)
    assert "has kept no output; ropewalk runs show cc33" in run("logs", "cc33", wrong=1)


def test_output_is_followed_until_the_run_ends(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = output_of(store, tmp_path)
    looks = 0

    def grow(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            (folder / "11.txt").write_text("a new attempt\n")
        else:
            with (folder / "11.txt").open("a") as file:
                file.write("its last words")
            store.apply(of("dd44", StateIs("done", NOW)))

    monkeypatch.setattr(runs_logs.time, "sleep", grow)
    result = CliRunner().invoke(app, ["runs", "logs", "dd44", "--follow", "-n", "0"])
    assert result.stdout.splitlines() == ["[11] a new attempt", "[11] its last words"]
    assert "run dd44 is done" in result.stderr


def test_a_trial_that_has_not_printed_yet_is_followed(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store, "ee55", kind="trial", folder=str(tmp_path / "ee55"))
    assert "has kept no output" in run("logs", "ee55", wrong=1)

    def end(_: float) -> None:
        (tmp_path / "ee55" / OUTPUT).mkdir(parents=True)
        (tmp_path / "ee55" / OUTPUT / "1.txt").write_text("its only words\n")
        store.apply(of("ee55", StateIs("done", NOW)))

    monkeypatch.setattr(runs_logs.time, "sleep", end)
    assert CliRunner().invoke(app, ["runs", "logs", "ee55", "--follow"]).stdout == "[1] its only words\n"


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_STORE", str(tmp_path / "runs.db"))
    assert "there is no store at" in run("list", wrong=1)
    assert os.listdir(tmp_path) == []
    (tmp_path / "runs.db").write_bytes(b"no database" * 100)
    assert "is damaged or is not a store" in run("show", "x", wrong=1)
    with open_store(tmp_path / "other.db"):
        pass
    assert "the store has no runs" in run("show", "x", "--store", str(tmp_path / "other.db"), wrong=2)
    assert "'runing' is not a state" in run("list", "--state", "runing", "--store", str(tmp_path / "other.db"), wrong=2)


def test_without_the_extra_the_help_works_and_commands_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from ropewalk import tracking

    monkeypatch.delitem(vars(tracking), "open_store", raising=False)
    for name in [name for name in sys.modules if name.startswith(("sqlalchemy", "ropewalk.tracking.store"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert "compare" in run("--help")
    assert "needs sqlalchemy: pip install 'ropewalk[tracking]'" in run("list", wrong=2)
