"""`ropewalk plan`: tables, JSON and files for people and scripts, and words for what cannot be."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ropewalk.cli import app
from ropewalk.pipeline.plans import Plan, Stage
from ropewalk.pipeline.profiles import Operator, Profile
from tests.cli.command import ropewalk, ropewalk_alone
from tests.profiles import shipped, text_of


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def chain(tmp_path: Path) -> str:
    """A profile of four equal operators; copies of them all cost more in sums of gradients than stages in transfers."""
    operators = tuple(
        Operator(f"layer{n}", forward_s=0.01, backward_s=0.02, output_bytes=1000, parameters={f"w{n}": 50_000_000})
        for n in range(4)
    )
    edges = tuple((f"layer{n}", f"layer{n + 1}") for n in range(3))
    path = tmp_path / "chain.json"
    Profile(operators, edges, num_samples=8, model="chain").save(path)
    return str(path)


def planned(*arguments: str) -> dict[str, Any]:
    code, output, errors = run(*arguments, "--json")
    assert code == 0, errors
    return json.loads(output)


def test_a_profile_becomes_a_table_with_a_line_for_each_stage(chain: str) -> None:
    code, output, _ = run("--profile", chain, "--devices", "4", "--num-stages", "2")
    assert code == 0
    lines = output.splitlines()
    assert lines[0] == "chain on 4 devices, 1 GB/s: 2 stages, one_f_one_b, 16 micro-batches in a step"
    assert [line.split()[0] for line in lines[3:5]] == ["0", "1"]
    assert any(line.startswith("bottleneck") for line in lines)


def test_json_has_every_number_in_seconds_and_bytes(chain: str) -> None:
    found = planned("--profile", chain, "--devices", "4", "--micro-batches", "8", "--memory", "2GB")
    assert [stage["nodes"] for stage in found["stages"]] == [[f"layer{n}"] for n in range(4)]
    assert [stage["replicas"] for stage in found["stages"]] == [1, 1, 1, 1]
    # By hand: four stages of 30 ms, seven more micro-batches, and three boundaries of 1 kB both ways at 1 GB/s.
    assert found["objective_s"] == pytest.approx(4 * 0.03 + 7 * 0.03 + 3 * 2e-6, rel=1e-12)
    assert found["step_s"] == pytest.approx(found["objective_s"], rel=1e-3)
    assert found["speedup_over_one"] == pytest.approx(8 * 0.12 / found["objective_s"])
    assert found["lower_bound_s"] <= found["least_objective_s"] <= found["objective_s"] and found["planning_s"] > 0
    assert found["gap"] == pytest.approx(found["least_objective_s"] / found["lower_bound_s"] - 1)
    assert found["stages"][0]["memory"]["weights"] == 50_000_000
    assert found["memory_bytes"] == 2_000_000_000


def test_levels_and_bandwidths_read_from_the_inside_out(chain: str) -> None:
    one = planned("--profile", chain, "--devices", "2x2", "--bandwidth", "12e9,1.25e9")
    other = planned("--profile", chain, "--devices", "2x2@12GBps,10Gbps")
    assert one["topology"] == other["topology"] == "chain on 2 per server x 2 servers, 12 GB/s, 1.25 GB/s"
    assert one["objective_s"] == other["objective_s"]


def test_cuts_are_kept(chain: str) -> None:
    found = planned("--profile", chain, "--devices", "4", "--cut", "layer0", "--cut", "layer2")
    assert [stage["nodes"] for stage in found["stages"]] == [["layer0"], ["layer1", "layer2"], ["layer3"]]
    assert found["partitioner"] == "fixed"


def test_speed_ups_by_the_clock_stand_beside_those_of_the_objective(chain: str) -> None:
    found = planned("--profile", chain, "--devices", "4", "--partitioner", "pipedream", "--schedule", "gpipe")
    # By hand: 16 micro-batches of 120 ms on one device, and on four of them with a sum of 200 MB, 3/4 of it twice.
    one_s, copies_s = 16 * 0.12, 4 * 0.12 + 2 * 3 / 4 * 0.2
    assert found["simulated_speedup_over_one"] == pytest.approx(one_s / found["step_s"], rel=1e-6)
    assert found["simulated_speedup_over_data_parallel"] == pytest.approx(copies_s / found["step_s"], rel=1e-6)


@pytest.mark.parametrize("text", ["raise KeyError('of the file')", "def make(): raise KeyError('of the file')"])
def test_an_error_of_the_users_file_is_shown_as_python_would(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    done = ropewalk("plan", "bad.py:make", "--devices", "2", folder=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Traceback") and done.stderr.endswith("KeyError: 'of the file'\n")
    assert "ropewalk" not in done.stderr


@pytest.mark.parametrize("schedule", ["gpipe", "pipedream", "zb_h1"])
def test_a_schedule_is_asked_for_by_name(chain: str, schedule: str) -> None:
    assert planned("--profile", chain, "--devices", "4", "--schedule", schedule)["schedule"] == schedule


@pytest.mark.parametrize(
    ("model", "objective_s", "replicas", "free_s"),
    [
        ("skips", 0.116718, [1, 1, 1, 1], 0.108593),
        *(("vgg16", 0.205520896, [3, 1], 0.17573262400000003) for _ in shipped("vgg16")),
    ],
)
def test_pipedreams_own_partitioner_counts_by_its_own_cost_models(
    model: str, objective_s: float, replicas: list[int], free_s: float, tmp_path: Path
) -> None:
    (tmp_path / "model.txt").write_text(text_of(model))
    given = ("--profile", str(tmp_path / "model.txt"), "--devices", "4", "--partitioner", "pipedream")
    found = planned(*given)
    assert found["objective_s"] == pytest.approx(objective_s, abs=1e-9)
    assert [stage["replicas"] for stage in found["stages"]] == replicas
    assert found["schedule"] == "pipedream"
    free = planned(*given, "--cost-model", "repository", "--free-transfers")
    assert free["objective_s"] == pytest.approx(free_s, abs=1e-9)


def test_files_hold_the_plan_for_people_and_programs(chain: str, tmp_path: Path) -> None:
    names = {name: tmp_path / f"plan.{name}" for name in ("svg", "dot", "save")}
    given = [word for name, path in names.items() for word in (f"--{name}", str(path))]
    found = planned("--profile", chain, "--devices", "4", *given)
    words = "".join(xml.etree.ElementTree.parse(names["svg"]).getroot().itertext())
    assert "stage 3" in words and "bottleneck" in words
    assert names["dot"].read_text().count("subgraph cluster_") == 4
    plan = Plan.from_json(names["save"].read_bytes())
    assert [list(stage.operators) for stage in plan.stages] == [stage["nodes"] for stage in found["stages"]]
    assert plan.prediction is not None and plan.prediction.step_s == found["step_s"]


MODEL = """
import torch

def make_model():
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    return torch.nn.Sequential(*layers), torch.randn(32, 64)

def nothing():
    return 5

if __name__ == "__main__":
    raise SystemExit("a module, not a script")
"""


def test_a_function_of_a_users_file_is_measured_and_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(f"print('this is imported')\n{MODEL}")
    given = ("--devices", "2", "--num-stages", "2", "--repeats", "1")
    done = ropewalk("plan", "train.py:make_model", *given, "--save-profile", "profile.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "this is imported\n" in done.stdout and "2 stages, one_f_one_b" in done.stdout
    # Here, where torch is imported once for all tests: a command takes 2 s of CPU time for it.
    (tmp_path / "train.py").rename(tmp_path / "planned_in_json.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, output, errors = run(f"{tmp_path}/planned_in_json.py:make_model", *given, "--json")
    assert code == 0 and len(json.loads(output)["stages"]) == 2 and "this is imported\n" in errors
    profile = Profile.from_json((tmp_path / "profile.json").read_bytes())
    assert sum(operator.parameter_bytes for operator in profile.operators) == 4 * (64 * 64 + 64) * 4


def test_a_measurement_beside_more_processes_than_the_host_has_cores_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train_it.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))  # the command puts the file's folder first; this takes it back
    given = (f"{tmp_path}/train_it.py:make_model", "--devices", "2", "--concurrency", "1000")
    found, output, errors = run(*given)
    assert (found, output) == (2, "") and "concurrency=1000 with" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--devices", "4"], 2, "name either a model as FILE.py:FUNCTION or a profile"),
        (["--profile", "CHAIN"], 2, "say how many devices there are"),
        (["--profile", "CHAIN", "--devices", "0"], 2, "'0' has no devices"),
        (["--profile", "CHAIN", "--devices", "4", "--bandwidth", "0"], 2, "above 0 bytes per second"),
        (["--profile", "CHAIN", "--devices", "4x2", "--bandwidth", "1e9"], 2, "1 bandwidths were given for 2 levels"),
        (["--profile", "CHAIN", "--devices", "4", "--memory", "lots"], 2, "not 'lots'"),
        (["--profile", "CHAIN", "--devices", "4", "--memory", "1MB"], 1, "1 MiB"),
        (["--profile", "CHAIN", "--devices", "8", "--num-stages", "5"], 1, "num_stages <= 4"),
        (["--profile", "CHAIN", "--devices", "4", "--schedule", "one_f_1b"], 2, "one_f_one_b"),
        (["--profile", "CHAIN", "--devices", "4", "--partitioner", "exakt"], 2, "did you mean 'exact'"),
        (["--profile", "CHAIN", "--devices", "4", "--cost-model", "paper"], 2, "belong to --partitioner pipedream"),
        (["--profile", "CHAIN", "--devices", "4", "--cut", "layer9"], 2, "layer9"),
        (["--profile", "CHAIN", "--devices", "4", "--cut", "layer1", "--partitioner", "balanced"], 2, "leave out one"),
        (["--profile", "CHAIN", "--devices", "4@12"], 2, 'was "12GBps" meant?'),
        (["--profile", "PLAN", "--devices", "4"], 2, "is a plan; --profile takes a profile"),
        (["--profile", "nowhere.json", "--devices", "4"], 2, "No such file"),
        (["nowhere.py:make", "--devices", "4"], 2, "there is no file nowhere.py"),
        (["TRAIN:make_modle", "--devices", "4"], 2, "did you mean make_model?"),
        (["TRAIN:nothing", "--devices", "4"], 2, "must return (model, example inputs of one micro-batch), not int"),
        (["TRAIN", "--devices", "4"], 2, "a model is named as FILE.py:FUNCTION"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_answered_in_words(
    chain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "train_.py").write_text(MODEL.replace("import torch", ""))
    monkeypatch.syspath_prepend(str(tmp_path))  # the command puts the file's folder first; this takes it back
    (tmp_path / "plan.json").write_bytes(Plan((Stage(0, ("layer0",), (0,)),)).to_json())
    files = {"CHAIN": chain, "TRAIN": str(tmp_path / "train_.py"), "PLAN": str(tmp_path / "plan.json")}
    given = [re.sub("CHAIN|TRAIN|PLAN", lambda match: files[match[0]], word) for word in arguments]
    found, output, errors = run(*given)
    assert (found, output) == (code, ""), errors
    assert words in errors and errors.startswith("ropewalk plan: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"operators": [], "edges": []}', "at least one operator"),
        ('{"operators": [{"id": "a"}, {"id": "a"}], "edges": []}', "'a' occurs twice"),
        ('{"operators": [{"id": "a", "forward_s": -1}], "edges": []}', "must be a number from 0 to 1e+18, not -1"),
        ('{"operators": [{"id": "a"}], "edges": [["a", "b"]]}', "names 'b', which is not an operator"),
        ('{"operators": [{"id": "a"}, {"id": "b"}], "edges": [["a", "b"], ["b", "a"]]}', "a -> b -> a"),
        ("node1 -- what", "1"),
    ],
)
def test_a_profile_that_cannot_be_says_where(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad").write_text(text)
    code, _, errors = run("--profile", str(tmp_path / "bad"), "--devices", "2")
    assert code == 2
    assert words in errors


def test_files_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    # An operator with such a name ended the command, where the locale is C and Python is told to take its encoding.
    costs = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=100.0, parameter_size=10.0"
    text = f"node1 -- Größe -- {costs}\nnode2 -- Linear -- {costs}\n\tnode1 -- node2\n"
    (tmp_path / "model.txt").write_text(text, encoding="utf-8")
    given = ("--profile", "model.txt", "--devices", "2", "--svg", "plan.svg", "--dot", "plan.dot")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = ropewalk_alone("plan", *given, folder=tmp_path, **locale)
    assert done.returncode == 0, done.stderr
    assert "Größe" in (tmp_path / "plan.dot").read_text(encoding="utf-8")
