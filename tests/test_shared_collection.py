"""Each worker of xdist collects a share of the tests, and others when it is to run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import get_config

pytest.importorskip("xdist", reason="`make test` runs tests in several workers: pip install pytest-xdist")

from tests.file_order import next_file
from tests.shared_collection import AllTests, is_possible, shares_of

ROOT = Path(__file__).parents[1]

CONFTEST = """
import os, sys
from pathlib import Path
import pytest
pytest_plugins = ["tests.workers", "tests.shared_collection"]

@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session):
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        here = sorted(each.rpartition(".")[2] for each in sys.modules if ".test_" in each)
        names = [item.nodeid for item in session.items]
        Path(f"{worker}.collected").write_text(" ".join(here) + "\\n" + " ".join(names))
"""
MODULE = """
import os, signal
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(3))
def test_some(number, of_folder, of_all):
    pass
"""
IN_FOLDER = "import pytest\n@pytest.fixture(scope='package')\ndef of_folder():\n    return 1\n"
OF_ALL = "import pytest\n@pytest.fixture\ndef of_all():\n    return 1\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of tests with three parts, and a file beside them."""
    tests = tmp_path / "tests"
    for part in ("one", "two", "three"):
        (tests / part).mkdir(parents=True)
        (tests / part / "__init__.py").touch()
        (tests / part / "conftest.py").write_text(IN_FOLDER)
        (tests / part / f"test_{part}.py").write_text(MODULE)
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(OF_ALL)
    (tests / "test_loose.py").write_text("def test_it(of_all):\n    pass\n")
    for name in ("workers.py", "file_order.py", "shared_collection.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return tmp_path


def run(project: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "xdist.plugin", "-n", "2", *arguments]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(project)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def collected(project: Path) -> tuple[list[str], list[list[str]]]:
    """The modules that each worker had imported before its first test, and the names that it told."""
    lines = [path.read_text().split("\n") for path in sorted(project.glob("*.collected"))]
    assert len({names for _, names in lines}) == 1, "xdist would refuse them"
    return lines[0][1].split(), [modules.split() for modules, _ in lines]


def test_all_tests_run_though_no_worker_has_collected_all(project: Path) -> None:
    code, said = run(project)
    assert code == 0 and "10 passed" in said, said
    names, modules = collected(project)
    assert len(names) == len(set(names)) == 10
    assert sorted(name for each in modules for name in each) == ["test_loose", "test_one", "test_three", "test_two"]
    assert all(modules)


def test_tests_are_chosen_as_without_it(project: Path) -> None:
    code, said = run(project, "-k", "two or it")
    assert code == 0 and "4 passed" in said, said
    assert len(collected(project)[0]) == 4


def test_workers_collect_all_where_they_have_to(project: Path) -> None:
    code, said = run(project, "tests/one", "tests/two")
    assert code == 0, said
    _, modules = collected(project)
    assert modules[0] == modules[1] != []


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ([], True),
        (["-k", "two"], True),
        *(([option], False) for option in ("--lf", "--ff", "--nf", "--sw", "--slice=0/7", "tests/one")),
    ],
)
def test_they_have_to_where_an_option_sees_all_tests(
    project: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], possible: bool
) -> None:
    config: Any = get_config()
    config._parser.addoption("--slice")  # which is ours
    config.option = config._parser.parse_known_args(options)
    config._inipath, config._rootpath = None, project
    config.args = config.option.file_or_dir or ["tests"]
    monkeypatch.chdir(project)
    assert is_possible(config) == possible


def test_a_module_that_cannot_be_imported_makes_the_run_red(project: Path) -> None:
    (project / "tests" / "two" / "test_two.py").write_text("import nothing_like_it\n")
    code, said = run(project)
    assert code == 1 and "nothing_like_it" in said and "7 passed" in said, said


def test_what_a_worker_that_died_was_to_collect_is_collected_by_the_next_one(project: Path) -> None:
    file = project / "tests" / "two" / "test_two.py"
    file.write_text(
        MODULE + "if not Path('died').exists():\n    Path('died').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code, said = run(project)
    assert code == 0 and "10 passed" in said and "node down" in said, said


def test_shares_are_alike_and_each_has_a_folder_of_long_tests(tmp_path: Path) -> None:
    for part, size in {"a": 900, "b": 500, "c": 300, "examples": 10, "scenarios": 100, "docs": 20}.items():
        (tmp_path / part).mkdir()
        (tmp_path / part / "test_it.py").write_text("#" * size)
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.toml").write_text("no test")
    for name in ("test_x.py", "test_y.py"):
        (tmp_path / name).write_text("#" * 150)
    shares = shares_of(tmp_path, 3)
    assert sorted(part for share in shares for part in share) == [
        *("a", "b", "c", "docs", "examples", "scenarios", "tests"),
    ]
    assert all(len({"docs", "examples", "scenarios"}.intersection(share)) == 1 for share in shares)
    assert [part for part in shares_of(tmp_path, 1)[0] if part == "tests"] == ["tests"]


def test_a_worker_begins_in_a_folder_that_it_has_collected() -> None:
    waiting = {"tests/a/test_a.py": 90, "tests/b/test_b.py": 10, "tests/c/test_c.py": 50, "engines/slurm": 5}
    assert next_file(waiting, None, (), {"b"}) == "tests/b/test_b.py"
    assert next_file(waiting, None, (), {"engines"}) == "engines/slurm"
    assert next_file(waiting, None, {"tests/b"}, {"b"}) == "tests/a/test_a.py"
    assert next_file(waiting, "tests/c", (), {"b"}) == "tests/c/test_c.py"


def test_a_part_is_collected_once_and_when_its_first_test_is_taken() -> None:
    asked: list[str] = []

    def collect(part: str) -> dict[str, Any]:
        asked.append(part)
        return {"late::a": "A", "late::b": "B"}

    names = [("early", "early::x"), *(("late", f"late::{letter}") for letter in "abc")]
    found: Any = {"early": {"early::x": "X"}}
    tests = AllTests(names, found, collect)
    assert len(tests) == 4 and tests[0] == "X" and asked == []
    assert [each if each == "X" else (each.nodeid, each.fixturenames) for each in tests] == [
        *("X", ("late::a", ()), ("late::b", ()), ("late::c", ())),
    ]
    assert (tests[2], tests[1], asked) == ("B", "A", ["late"])
    with pytest.raises(RuntimeError, match="late::c was collected by another worker"):
        tests[3]
