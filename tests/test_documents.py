"""What the documents say of the code is so."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ropewalk
from ropewalk import errors, rl
from ropewalk.cli import COMMANDS
from ropewalk.engines import ENGINES
from ropewalk.errors import CallError
from ropewalk.exchange.compressors import COMPRESSORS
from ropewalk.pipeline.partitioners import PARTITIONERS
from ropewalk.pipeline.schedules import SCHEDULES
from ropewalk.population.algorithms import ALGORITHMS
from ropewalk.population.evaluating import evaluate
from ropewalk.program.nodes import NODES
from ropewalk.transport.kernel import FEATURES
from tests.docs.code_blocks import complaints, printed_by
from tests.pipeline.conftest import one_thread
from tests.typing.public_interface import PUBLIC_MODULES

__all__ = ["one_thread"]

ROOT = Path(__file__).resolve().parents[1]
ENGINES_PAGE = (ROOT / "docs" / "engines.md").read_text()


@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"local"}))
def test_every_option_of_an_engine_is_in_its_document(name: str) -> None:
    module = importlib.import_module(ENGINES[name].partition(":")[0])
    kinds = [value for attribute, value in vars(module).items() if attribute.endswith("Options")]
    assert kinds, f"{module.__name__} has no options"
    said = set(re.findall(r"`(?:--option |-o )?([a-z_]+)`", ENGINES_PAGE))
    missing = {field.name for kind in kinds for field in dataclasses.fields(kind)} - said
    assert not missing, f"docs/engines.md says nothing of {sorted(missing)} of the engine {name}"


def test_the_page_on_engines_lists_what_is_asked_of_the_kernel() -> None:
    for feature in FEATURES:
        assert f"| `{feature.name}` | {feature.since} | {feature.without or 'nothing runs'} |" in ENGINES_PAGE


#: Every page of ours.
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("document", PAGES)
def test_links_lead_to_files_that_are_there(document: str) -> None:
    path = ROOT / document
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing, f"{document} links to {missing}"


@pytest.mark.parametrize("number", range(3))
def test_the_programs_of_the_page_on_multiprocessing_run(number: int, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "multiprocessing.md").read_text(), re.DOTALL)
    assert len(programs) == 3
    (tmp_path / "program.py").write_text(programs[number])
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert done.stdout == ("285\n", "no more than 1 GiB\n", "[1, 2, 4, 8]\n")[number]


def test_the_page_on_stability_lists_the_public_modules_and_has_no_other() -> None:
    page = (ROOT / "docs" / "stability.md").read_text()
    rows = re.findall(r"^\| (`ropewalk.*?) \|", page, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(.*?)`", row)]
    assert sorted(named) == sorted(PUBLIC_MODULES)
    for name in named:
        importlib.import_module(name)


def programs_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)


@pytest.fixture
def run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Runs a program of a page as `__main__` of this process, in `tmp_path`; gives what it prints.

    For programs that need torch and start no process that needs it: 3 s of CPU time less than in one of their own.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_STORE", str(tmp_path / "runs.db"))

    def run(program: str) -> str:
        capsys.readouterr()
        exec(compile(program, "page.md", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return run


def test_the_programs_of_pages_that_need_torch_are_all_here() -> None:
    assert {page: len(programs_of(page)) for page in ("pipeline", "exchange", "training", "population")} == {
        "pipeline": 1,
        "exchange": 2,
        "training": 4,
        "population": 1,
    }


def test_the_program_of_the_page_on_pipelines_runs(run_here: Callable[[str], str], one_thread: None) -> None:
    printed = run_here(programs_of("pipeline")[0])
    assert "3 stages, one_f_one_b, 8 micro-batches in a step" in printed
    assert "tensor(2." in printed.splitlines()[-1]
    (grid,) = re.findall(r"```\n(worker 0 .*?)```", (ROOT / "docs" / "pipeline.md").read_text(), re.DOTALL)
    assert grid in printed


def test_the_program_of_the_page_on_exchanges_that_trains_in_threads_runs(run_here: Callable[[str], str]) -> None:
    assert "Gradient exchange, 5 steps" in run_here(programs_of("exchange")[1])


@pytest.fixture(scope="module")
def of_tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str]]]:
    """Of each program that trains in processes, what it prints, and what it complains of."""
    from ropewalk.training.stage_fleet import PRELOADED  # which imports torch

    programs = {f"training {number}": text for number, text in enumerate(programs_of("training"))}
    programs["exchange 0"] = programs_of("exchange")[0]
    return printed_by(programs, tmp_path_factory.mktemp("pages"), PRELOADED)


@pytest.mark.soak  # 10 s of CPU time, for what tests of training and of exchanges show in processes by default
@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("exchange 0", r"loss 0\.\d+"),
        ("training 0", "one_f_one_b on 2 workers, 4 mi"),
        ("training 1", r"^loss 0\.\d+"),
        ("training 2", "^2 replicas, loss 0"),
        ("training 3", r"^loss 0\.\d+"),
    ],
)
def test_the_programs_of_the_pages_on_exchanges_and_training_run(
    program: str, says: str, of_tensors: dict[str, tuple[str, list[str]]]
) -> None:
    printed, complaints = of_tensors[program]
    assert complaints == []
    assert re.search(says, printed), printed


def test_the_program_of_the_page_on_searches_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "search.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "program.py").write_text(program.replace("trials=30", "trials=9"))
    environment = os.environ | {"ROPEWALK_STORE": str(tmp_path / "runs.db")}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^best \S+ \{'rate': 0\.\d+, 'momentum': ", done.stdout, re.MULTILINE), done.stdout


PROGRAMS_PAGE = (ROOT / "docs" / "programs.md").read_text()
#: Each program of the page, with what the page says that it prints.
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PROGRAMS_PAGE, re.DOTALL)


def test_every_program_of_the_page_on_programs_is_followed_by_what_it_prints() -> None:
    assert len(PROGRAMS) == PROGRAMS_PAGE.count("```python") == 10


@pytest.fixture(scope="module")
def of_nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str]]]:
    """Of each program of the page on programs, what it prints, and what it complains of."""
    return printed_by(
        {str(number): text for number, (text, _) in enumerate(PROGRAMS)}, tmp_path_factory.mktemp("programs")
    )


@pytest.mark.parametrize("number", range(10))
def test_the_programs_of_the_page_on_programs_run(number: int, of_nodes: dict[str, tuple[str, list[str]]]) -> None:
    program, says = PROGRAMS[number]
    printed, complaints = of_nodes[str(number)]
    deaths = [line for line in says.splitlines() if "; it starts again (restart " in line]
    assert len(complaints) == len(deaths), complaints
    for complaint, death in zip(complaints, deaths, strict=True):
        assert re.fullmatch(re.escape(death).replace(r"\.\.\.", ".*"), complaint)
    says = "".join(f"{line}\n" for line in says.splitlines() if line not in deaths)
    printed = printed.replace(f"@{platform.node().partition('.')[0]}]", "@laptop]")
    if "CallCycle" in program:  # which of the two calls came last, is not known before
        printed = re.sub(r"^\[two 0@laptop\]", "[one 0@laptop]", printed, flags=re.MULTILINE)
        drawing = [line for line in printed.splitlines() if "was ended" not in line]
        assert sorted(drawing) == sorted(line for line in says.splitlines() if "was ended" not in line)
        assert re.search(r"(left|right)\.answer was ended, as it came last; let one of these methods return", printed)
    else:  # two nodes may print in any order
        assert sorted(printed.splitlines()) == sorted(says.splitlines())


def names_of_programs() -> set[str]:
    """What a user of programs may want to look up: names of the package, methods, attributes, arguments and errors."""
    homes = ropewalk._lazy.homes.items()  # pyright: ignore[reportPrivateUsage]
    names = {name for name, home in homes if home.startswith(("ropewalk.program", "ropewalk.calls"))}
    names |= {node.__name__ for node in NODES.values()}
    names |= {each.__name__ for each in vars(errors).values() if isinstance(each, type) and issubclass(each, CallError)}
    names |= {"ProgramFailed", "ProgramInvalid", "HandleNotConnected", "CheckpointCorrupt"}
    for each in (ropewalk.Program, ropewalk.RunningProgram, ropewalk.CurrentCall, ropewalk.Handle, ropewalk.Client):
        names |= {name for name in vars(each) if not name.startswith("_")}
    for each in (
        ropewalk.Program.add,
        ropewalk.Program.launch,
        ropewalk.Program.group,
        ropewalk.Handle.client,
        ropewalk.batched,
    ):
        names |= set(inspect.signature(each).parameters)
    names |= {field.name for field in dataclasses.fields(ropewalk.Restart)}
    of_ours = {
        "begin",
        "abandon",
        "end_with_script",
        "heard",
        "ended",
        "leaving",
        "happened",
        "lost",
    }  # called by the launch and the hosting
    looked_into = {"self", "session", "specs", "names", "declared", "spec", "edges", "address", "methods"}
    return names - of_ours - looked_into


def test_the_page_on_programs_names_all_that_is_public_and_nothing_that_is_not_there() -> None:
    code = " ".join(re.findall(r"```python\n.*?```|`[^`\n]+`", PROGRAMS_PAGE, re.DOTALL))
    missing = names_of_programs() - set(re.findall(r"\w+", code))
    assert not missing, f"docs/programs.md says nothing of {sorted(missing)}"
    unknown = {name for name in re.findall(r"\brw\.(\w+)", code) if not hasattr(ropewalk, name)}
    assert not unknown, f"docs/programs.md speaks of {sorted(unknown)}, which ropewalk does not have"
    running = set(re.findall(r"\brunning\.(\w+)", code)) - set(dir(ropewalk.RunningProgram))
    assert not running, f"docs/programs.md speaks of {sorted(running)}, which a running program does not have"


def test_the_page_on_the_command_line_lists_every_command_with_its_guide() -> None:
    table = re.findall(r"^\| (`.*`) \| \[", (ROOT / "docs" / "command-line.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(table))) == sorted(COMMANDS)


def test_the_page_on_training_names_every_schedule_and_argument() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    missing = [name for name in (*SCHEDULES, *inspect.signature(ropewalk.Trainer.__init__).parameters)
               if f"`{name}" not in text and name not in ("self",)]  # fmt: skip
    assert not missing, f"docs/training.md says nothing of {missing}"


def test_the_page_on_exchanges_names_every_compressor() -> None:
    text = (ROOT / "docs" / "exchange.md").read_text()
    missing = [name for name in COMPRESSORS if f"`{name}`" not in text]
    assert not missing, f"docs/exchange.md says nothing of {missing}"


def test_the_page_on_pipelines_names_every_partitioner_and_schedule() -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text()
    missing = [name for name in (*PARTITIONERS, *SCHEDULES) if f"| `{name}` |" not in text]
    assert not missing, f"docs/pipeline.md says nothing of {missing}"


def test_the_program_of_the_page_on_populations_runs(run_here: Callable[[str], str]) -> None:
    first, second = run_here(programs_of("population")[0]).splitlines()
    assert re.fullmatch(
        r"OpenAIES: best test -0\.0\d+, best evaluation -\d.*, \d+ generations, .* ms of the launcher for each\)", first
    )
    assert re.fullmatch(r"best \[(0\.[456] ?){4}\]", second)


RL_PAGE = (ROOT / "docs" / "reinforcement-learning.md").read_text()
#: Each program of the page, with what the page says that it prints.
RL_PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", RL_PAGE, re.DOTALL)
#: To run in less time: fewer steps, and what preloads something is forked as the others are.
SMALLER_RL = {
    r"(?<!every_)steps=(20|8)_000": "steps=1_000",
    r"steps=2_000, groups=2": "steps=512, groups=2",
    r"steps=4_000": "steps=2_000",
    r"steps=2_000\)\nprint\(server": "steps=1_000)\nprint(server",
    r"interval=1_000, steps=2_000": "interval=200, steps=400",
    r"rw\.Pool\(2\)": "rw.Pool(2, preload=['torch'])",
}


IN_PROCESSES = [
    number for number, (program, _) in enumerate(RL_PROGRAMS) if re.search(r"run\(actors|rw\.(Pool|Program)\(", program)
]
"""The programs with actors, services and members that are processes of their own."""


def smaller(program: str) -> str:
    for pattern, replacement in SMALLER_RL.items():
        program = re.sub(pattern, replacement, program)
    return program


@pytest.mark.parametrize(
    "number",
    [number for number in range(10) if number not in IN_PROCESSES],
)
def test_the_programs_of_the_page_on_reinforcement_learning_print_what_it_says(
    number: int, run_here: Callable[[str], str], one_thread: None
) -> None:
    """All words, and numbers wherever the page has them: what is learned in more steps, tests of agents show."""
    pytest.importorskip("gymnasium", reason="the programs need environments: pip install 'ropewalk[rl]'")
    program, says = RL_PROGRAMS[number]
    assert without_numbers(run_here(smaller(program))) == without_numbers(says)


# 15 s of CPU time, for what tests of lock-step, of replay, of inference and of populations show by default.
@pytest.mark.soak
def test_the_programs_of_the_page_on_reinforcement_learning_that_start_processes_print_what_it_says(
    tmp_path: Path,
) -> None:
    pytest.importorskip("gymnasium", reason="the programs need environments: pip install 'ropewalk[rl]'")
    pytest.importorskip("torch", reason="agents need torch: pip install 'ropewalk[rl]'")
    from ropewalk.rl import distributed

    programs = {str(number): smaller(RL_PROGRAMS[number][0]) for number in IN_PROCESSES}
    found = printed_by(programs, tmp_path, distributed._PRELOAD)
    printed = [text.replace(f"@{platform.node().partition('.')[0]}]", "@laptop]") for text, _ in found.values()]
    said = [complaints for _, complaints in found.values()]
    assert [without_numbers(each) for each in printed] == [
        without_numbers(RL_PROGRAMS[number][1]) for number in IN_PROCESSES
    ], said


def without_numbers(text: str) -> str:
    return re.sub(r"-?\d[\d,]*(\.\d+)?", "N", text)


def test_every_program_of_the_page_on_reinforcement_learning_is_followed_by_what_it_prints() -> None:
    assert len(RL_PROGRAMS) == RL_PAGE.count("```python") == 10 and len(IN_PROCESSES) == 4
    assert all(re.search(pattern, RL_PAGE) for pattern in SMALLER_RL), "the page has changed"


def test_the_page_on_reinforcement_learning_names_all_that_is_public_and_nothing_that_is_not_there() -> None:
    pytest.importorskip("gymnasium", reason="agents are made: pip install 'ropewalk[rl]'")
    pytest.importorskip("torch", reason="agents are made: pip install 'ropewalk[rl]'")
    from ropewalk.rl.settings_text import AGENTS

    code = " ".join(re.findall(r"```python\n.*?```|`[^`\n]+`", RL_PAGE, re.DOTALL))
    unknown = {name for name in re.findall(r"\brl\.(\w+)", code) if not hasattr(rl, name)} - {"pictures"}
    assert not unknown, f"docs/reinforcement-learning.md speaks of {sorted(unknown)}, which ropewalk.rl does not have"
    names = {agent.__name__ for agent in AGENTS}
    names |= {field.name for agent in AGENTS for field in dataclasses.fields(agent)}
    names |= {field.name for each in (rl.Experiment, rl.Evaluation) for field in dataclasses.fields(each)}
    names |= set(inspect.signature(rl.Experiment.run).parameters) - {"self"}
    missing = names - set(re.findall(r"\w+", code))
    assert not missing, f"docs/reinforcement-learning.md says nothing of {sorted(missing)}"


def test_the_page_on_populations_names_every_algorithm_and_option() -> None:
    text = (ROOT / "docs" / "population.md").read_text()
    classes = {place.partition(":")[2] for place in ALGORITHMS.values()}
    options = set(inspect.signature(evaluate).parameters)
    missing = {name for name in classes | options if not re.search(rf"`{name}[`(=]|[`(]{name}[,=]", text)}
    assert not missing, f"docs/population.md says nothing of {sorted(missing)}"


SECURITY_ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in (ROOT / "SECURITY.md").read_text().partition("| shown by |")[2].partition("\n\n")[0].splitlines()[2:]
]


@pytest.mark.parametrize("row", SECURITY_ROWS, ids=lambda row: row[0])
def test_every_row_of_the_page_on_security_names_tests_that_are_there(row: list[str]) -> None:
    what, _, shown_by = row
    tests = re.findall(r"`([^`]+)`", shown_by)
    assert tests, f"SECURITY.md says something of {what!r}, and no test shows it"
    for test in tests:
        file, _, name = test.partition("::")
        assert name in functions_of(file), f"SECURITY.md names {test}, which is not there"


@functools.cache
def functions_of(file: str) -> set[str]:
    """Names of the functions and methods in a file of tests."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}


def test_the_page_on_security_has_rows() -> None:
    assert len(SECURITY_ROWS) > 10 and all(len(row) == 3 for row in SECURITY_ROWS)
