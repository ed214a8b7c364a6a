"""When a rerun may turn a run of the tests green, and what is kept of runs."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import run_tests
from tests.conftest import Slice
from tests.patience import wait_until
from tests.run_tests import MAX_FAILURES, Flake, Record, read_ledger, read_record, why_not_again

TODAY = datetime.date(2024, 5, 17)
FAILED = Record(1, 100, 100, ("tests/a.py::test_a",))
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "no record"),
        (Record(0, 100, 100), "exit code 0"),
        (Record(2, 100, 40, FAILED.failed), "exit code 2"),  # interrupted
        (Record(3, 100, 100, FAILED.failed), "exit code 3"),  # an internal error
        (Record(-9, 100, 100, FAILED.failed), "exit code -9"),  # killed
        (Record(1, 100, 99, FAILED.failed), "99 of 100"),
        (Record(1, 100, 100, FAILED.failed, FAILED.failed), "a worker died in tests/a.py::test_a"),
        (Record(1, 100, 100), "no test of it did"),
        (Record(1, 100, 100, tuple(f"tests/a.py::test_{n}" for n in range(MAX_FAILURES + 1))), "no accident"),
    ],
)
def test_only_a_run_in_which_nothing_but_tests_failed_is_rerun(record: Record | None, reason: str) -> None:
    assert reason in why_not_again(record, {}, TODAY)


def test_known_flakes_have_their_time() -> None:
    def ledger(until: datetime.date) -> dict[str, Flake]:
        return {"tests/a.py::test_a": Flake("tests/a.py::test_a", "loses a race", until)}

    assert why_not_again(FAILED, {}, TODAY) == ""
    assert why_not_again(FAILED, ledger(TODAY), TODAY) == ""
    over = why_not_again(FAILED, ledger(TODAY - datetime.timedelta(1)), TODAY)
    assert "test_a" in over and "loses a race" in over and "2024-05-16" in over
    assert why_not_again(Record(1, 9, 9, ("tests/b.py::test_b",)), ledger(datetime.date.min), TODAY) == ""


def test_the_ledger_is_in_order() -> None:
    names = {test.partition("::")[0] for test in read_ledger()}
    assert all((ROOT / name).is_file() for name in names)


def test_a_line_of_the_ledger_that_says_too_little_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    line = '[[flake]]\ntest = "tests/a.py::test_a"\nseen = "loses a race"\nuntil = 2024-05-17\n'
    path.write_text(line)
    assert read_ledger(path) == {"tests/a.py::test_a": Flake("tests/a.py::test_a", "loses a race", TODAY)}
    for wrong in (line + line, line.replace("until = 2024-05-17", ""), line.replace("2024-05-17", '"some day"')):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=r"known\.toml"):
            read_ledger(path)


def test_the_parts_of_a_run_are_all_of_it_and_have_nothing_in_common() -> None:
    chosen = [types.SimpleNamespace(nodeid=f"a.py::test_{number}") for number in range(23)]
    parts = parts_of(chosen)
    assert {len(part) for part in parts} == {3, 4}
    assert sorted(itertools.chain(*parts)) == sorted(item.nodeid for item in chosen)


def test_tests_of_a_file_that_share_a_session_are_in_one_part_of_a_run() -> None:
    chosen = [
        types.SimpleNamespace(nodeid=f"{file}.py::test_{number}", fixturenames=["tmp_path", *shared])
        for file, num, shared in (("a", 20, []), ("b", 6, ["shared_session"]), ("c", 4, ["shared_depot"]))
        for number in range(num)
    ]
    parts = parts_of(chosen)
    assert {len(part) for part in parts} == {4, 6}
    assert sorted(itertools.chain(*parts)) == sorted(item.nodeid for item in chosen)
    files = [[test.partition("::")[0] for test in part] for part in parts]
    assert sorted(file.count("b.py") for file in files) == [0, 0, 0, 0, 0, 0, 6]
    assert sorted(file.count("c.py") for file in files) == [0, 0, 0, 0, 0, 0, 4]


def parts_of(chosen: list[types.SimpleNamespace]) -> list[list[str]]:
    config: Any = types.SimpleNamespace(hook=types.SimpleNamespace(pytest_deselected=lambda items: None))
    parts: list[list[str]] = []
    for index in range(7):
        items: list[Any] = chosen.copy()
        Slice(f"{index}/7").pytest_collection_modifyitems(config, items)
        parts.append([item.nodeid for item in items])
    return parts


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tests of its own, which know the plugin that tells what became of a run."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "conftest.py").write_text(f'import sys\nsys.path.append({str(ROOT)!r})\npytest_plugins = ["record"]\n')
    (tmp_path / "record.py").write_text((ROOT / "tests" / "record.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "RESULTS", tmp_path / "build")
    monkeypatch.setattr(run_tests, "busy", lambda number: contextlib.nullcontext(number))
    monkeypatch.setattr(run_tests, "RERUNS", 2)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # Hypothesis and others take half of such a run
    return tmp_path


def write(project: Path, body: str) -> None:
    (project / "tests" / "test_some.py").write_text(
        "import os, signal\nfrom pathlib import Path\n" + textwrap.dedent(body)
    )


def test_a_test_that_fails_once_is_a_flake_and_one_that_fails_again_is_red(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    beside: list[int] = []
    monkeypatch.setattr(run_tests, "busy", lambda number: contextlib.nullcontext(beside.append(number)))
    write(
        project,
        """
        def test_good():
            pass
        def test_flaky():
            here = Path("failed-once")
            assert here.exists() or here.touch()
        """,
    )
    assert run_tests.main(["some", "-q"]) == 1
    assert read_record(project / "build" / "some") == Record(1, 2, 2, ("tests/test_some.py::test_flaky",))
    assert run_tests.main(["--again", "some"]) == 0
    assert "NEW" in capfd.readouterr().out
    kept = {path.name for path in (project / "build" / "some").glob("*.xml")}
    assert kept == {"junit.xml", "again-0.xml", "again-1.xml"}

    (project / "failed-once").unlink()
    assert run_tests.main(["some", "-q"]) == 1
    (project / "failed-once").unlink()  # it fails in the rerun as well
    assert run_tests.main(["--again", "some"]) == 1
    assert "failed again" in capfd.readouterr().out
    assert beside == [8, 8]


def test_processes_that_a_rerun_is_beside_compute_until_it_is_over() -> None:
    with run_tests.busy(2):
        processes = psutil.Process().children()
        computing = [each for each in processes if each.cmdline()[-1] == "while True: pass"]
        assert len(computing) == 2
        for each in computing:
            wait_until(lambda each=each: each.cpu_times().user > 0, what="a process to compute")
    assert not any(each.is_running() for each in computing)


def test_a_rerun_gets_the_options_that_are_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, "def test_bad(tmp_path):\n    assert os.environ.get('AGAIN') and 'there' in str(tmp_path)")
    assert run_tests.main(["some", "-q"]) == 1
    monkeypatch.setenv("AGAIN", "yes")
    assert run_tests.main(["--again", "some"]) == 1
    assert run_tests.main(["--again", "some", f"--basetemp={project / 'there'}"]) == 0


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        # The first version turned both green: pytest's cache of the last failures was that of an earlier run.
        ("def test_bad():\n    assert 0\ndef test_z():\n    os.kill(os.getpid(), signal.SIGKILL)", 137, "no record"),
        ("def test_bad():\n    assert 0\ndef test_z():\n    raise KeyboardInterrupt", 2, "exit code 2"),
        ("def test_good():\n    pass", 0, "exit code 0"),
    ],
    ids=["killed", "interrupted", "green"],
)
def test_a_run_that_did_not_end_well_is_not_rerun(
    project: Path, capfd: pytest.CaptureFixture[str], body: str, code: int, reason: str
) -> None:
    write(project, "def test_old():\n    assert 0")
    assert run_tests.main(["some", "-q"]) == 1
    write(project, body)
    assert run_tests.main(["some", "-q"]) == code
    assert run_tests.main(["--again", "some"]) == 1
    assert reason in capfd.readouterr().out


def test_an_internal_error_is_not_rerun(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(project, "def test_bad():\n    assert 0\ndef test_good():\n    pass")
    with open(project / "conftest.py", "a") as file:
        file.write("def pytest_runtest_logfinish(nodeid):\n    assert 'good' not in nodeid\n")
    assert run_tests.main(["some", "-q"]) == 3
    assert run_tests.main(["--again", "some"]) == 1
    assert "exit code 3" in capfd.readouterr().out


def test_tests_that_are_lost_with_their_worker_are_missed(project: Path) -> None:
    pytest.importorskip("xdist")
    write(project, "def test_bad():\n    os.kill(os.getpid(), signal.SIGKILL)\ndef test_good():\n    pass")
    assert run_tests.main(["some", "-q", "-p", "xdist.plugin", "-n", "1", "--max-worker-restart", "0"]) != 0
    assert why_not_again(read_record(project / "build" / "some"), {}, TODAY)


CRASHING = """
import os, signal, time
import pytest

@pytest.mark.parametrize("number", range(4))
def test_good(number):
    pass

def test_with_a_child_that_lives_on():
    child = os.fork()  # with copies of all that the worker has open
    if not child:
        time.sleep(300)
        os._exit(0)
    open(f"{child}.child", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_a_run_with_workers_that_die_goes_on_and_names_the_tests_but_is_not_rerun(
    project: Path, capfd: pytest.CaptureFixture[str], num_workers: int
) -> None:
    """Such a run hung for ever: what was left of a worker was run by nobody, or a child of it kept its pipe open."""
    pytest.importorskip("xdist")
    with open(project / "conftest.py", "a") as file:
        file.write('pytest_plugins.append("tests.workers")\n')
    for name in ("workers.py", "file_order.py"):
        shutil.copy(ROOT / "tests" / name, project / "tests")
    for name in ("a", "b", "c"):  # more files than workers, and all of them crash
        (project / "tests" / f"test_{name}.py").write_text(CRASHING)
    code = run_tests.main(["some", "-q", "-ra", "-p", "xdist.plugin", "-n", str(num_workers)])
    children = [int(path.stem) for path in project.glob("*.child")]
    for child in children:
        os.kill(child, signal.SIGKILL)
    record = read_record(project / "build" / "some")
    crashed = [f"tests/test_{name}.py::test_with_a_child_that_lives_on" for name in ("a", "b", "c")]
    said = capfd.readouterr().out
    assert code == 1 and record and len(children) == 3, said
    assert sorted(record.crashed) == sorted(record.failed) == crashed
    assert (record.collected, record.ran) == (18, 15)
    assert all(f"crashed while running '{test}'" in said for test in crashed)
    assert run_tests.main(["--again", "some"]) == 1
    assert "a worker died in" in capfd.readouterr().out


def test_an_interrupt_lets_the_tests_end_what_they_have_started(project: Path) -> None:
    write(
        project,
        """
        import time
        def test_long():
            try:
                Path("begun").touch()  # inside, for the interrupt may come at once
                time.sleep(60)
            finally:
                time.sleep(0.5)
                Path("tidied").touch()
        """,
    )
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from pathlib import Path
        from tests import run_tests
        run_tests.ROOT = Path({str(project)!r})
        run_tests.RESULTS = run_tests.ROOT / "build"
        sys.exit(run_tests.main(["some", "-q"]))
    """
    before = signal.getsignal(signal.SIGINT)
    process: Any = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], start_new_session=True)
    wait_until((project / "begun").exists, what="the test to begin")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 2
    assert (project / "tidied").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_command_of_the_makefile_starts() -> None:
    """A package of the tests' folder, such as `typing`, does not hide one of Python."""
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("RUN_TESTS := "))
    arguments = line.removeprefix("RUN_TESTS := ").split()[1:]
    said = subprocess.run([sys.executable, *arguments, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "rerun" in said.stdout


def test_orphans_are_waited_for_at_once_whatever_the_first_process_of_the_machine_does() -> None:
    code = f"""
        import os, subprocess, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from tests import run_tests
        run_tests.adopt_orphans()
        child = "import subprocess as s; print(s.Popen(['sleep', '600'], stdout=s.DEVNULL).pid)"
        orphan = int(subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE).stdout)
        parent = int(open(f"/proc/{{orphan}}/stat").read().rpartition(")")[2].split()[1])
        os.kill(orphan, 9)
        while os.path.exists(f"/proc/{{orphan}}"):
            time.sleep(0.01)
        sys.exit(7 if parent == os.getppid() else 8)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == 7
