"""CPython's own tests of concurrent.futures, run against `ropewalk.Executor`; `batches` says how.

In `make soak`: tests/compat/test_executor.py and test_task_futures.py ask the same of it by default.

They come from an interpreter that ships them: $CONFORMANCE_PYTHON, the one that runs this, or the newest that is found
on the PATH or under ~/.pyenv (on Debian, the package libpython3-testsuite brings them). One that does not run this
gets an environment of its own with this project in it. `futures_runner.py` explains how to run some by hand.
"""

from __future__ import annotations

import faulthandler
import functools
import glob
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conformance import batches
from tests.conformance.futures_runner import TESTS
from tests.conformance.runner import PASSED
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("futures_runner.py")
AT_ONCE = 3  # most of them wait for something

_DEADLOCK, _POOL = "ProcessPoolSpawnExecutorDeadlockTest.", "ProcessPoolSpawnProcessPoolExecutorTest."
_SHUTDOWN = "ProcessPoolSpawnProcessPoolShutdownTest."
_INSIDE = "looks at a private attribute of ProcessPoolExecutor: "
_ALL_AT_ONCE = "expects that workers are started one by one; ours all start with the first call, for the next ones"
_ALONE = "expects that the executor breaks; ours goes on, and only this future fails, with the error itself"

#: Tests that cannot apply, each with the reason.
LEFT_OUT: dict[str, str] = {
    _DEADLOCK + "test_error_at_task_unpickle": _ALONE,
    _DEADLOCK + "test_error_during_result_unpickle_in_result_handler": _ALONE,
    _DEADLOCK + "test_exit_during_result_unpickle_in_result_handler": _ALONE,
    _DEADLOCK + "test_exit_during_result_pickle_on_worker": "an exit while its result is pickled ends a worker",
    _DEADLOCK + "test_gh105829_should_not_deadlock_if_wakeup_pipe_full": _INSIDE + "its wakeup pipe",
    _DEADLOCK + "test_shutdown_deadlock_pickle": _INSIDE + "_executor_manager_thread",
    "ProcessPoolSpawnFailingInitializerTest.test_initializer": (
        "passes a multiprocessing.Queue to the initializer, which works only by inheritance"
    ),
    _POOL + "test_idle_process_reuse_multiple": _ALL_AT_ONCE,
    _POOL + "test_idle_process_reuse_one": _ALL_AT_ONCE,
    _SHUTDOWN + "test_processes_terminate": _ALL_AT_ONCE,
    _POOL + "test_killed_child": "expects that a killed worker breaks the executor; ours runs its call again",
    _POOL + "test_max_tasks_per_child_defaults_to_spawn_context": _INSIDE + "_mp_context",
    _POOL + "test_python_finalization_error": _INSIDE + "its own threads",
    _POOL + "test_traceback": (
        "expects a private class for the remote traceback; ours is that of multiprocessing.pool, with the same text"
    ),
    _SHUTDOWN + "test_cancel_futures": (
        "expects that a call has begun at once; ours begin when a worker is up, and can all be cancelled before"
    ),
    _SHUTDOWN + "test_del_shutdown": _INSIDE + "_executor_manager_thread",
    _SHUTDOWN + "test_shutdown_no_wait": _INSIDE + "_call_queue",
    _SHUTDOWN + "test_interpreter_shutdown": "what workers print has the name of the worker in front",
    "FutureTests.test_cancel": (
        "looks at a private state: a cancelled future of ours has told everybody when cancel() returns"
    ),
    "FutureTests.test_multiple_set_exception": "expects <Future ...> in a message, and ours is a <TaskFuture ...>",
    "FutureTests.test_multiple_set_result": "expects <Future ...> in a message, and ours is a <TaskFuture ...>",
}


NONE = "no test"
"""The parameter where no test is known."""
NO_INTERPRETER = (
    f"no interpreter here has {TESTS}: install Debian's libpython3-testsuite, or name one in CONFORMANCE_PYTHON"
)


@functools.cache
def find_interpreter() -> str | None:
    """The first interpreter that has CPython's tests and is new enough for this project."""
    wish = os.environ.get("CONFORMANCE_PYTHON")
    if wish:
        return wish
    versions = [f"python3.{minor}" for minor in (14, 13, 12, 11)]
    installed = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python")), reverse=True)
    question = f"import sys, importlib.util as i; sys.exit(sys.version_info < (3, 11) or not i.find_spec({TESTS!r}))"
    for python in [sys.executable, *versions, *installed]:
        try:
            if subprocess.run([python, "-c", question], capture_output=True, timeout=PATIENCE_S).returncode == 0:
                return python
        except OSError:
            continue  # there is none of this name
    return None


@functools.cache
def all_tests() -> list[str]:
    """Their names; none without an interpreter that has them."""
    python = find_interpreter()
    if python is None:
        return []
    listing = subprocess.run([python, RUNNER, "--list"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert listing.returncode == PASSED, listing.stderr
    return listing.stdout.split()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Only a run of `soak` looks for the interpreter, and has an item for each test."""
    if "name" in metafunc.fixturenames:
        asked_for = str(metafunc.config.getoption("markexpr"))
        names = all_tests() if "soak" in asked_for and "not soak" not in asked_for else []
        if metafunc.function is test_a_class_ends_by_itself_and_leaves_nothing:
            names = list(dict.fromkeys(batches.class_of(name) for name in names if name not in LEFT_OUT))
        metafunc.parametrize("name", names or [NONE])


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with the tests and with this project."""
    found = find_interpreter()
    if found is None:
        pytest.skip(NO_INTERPRETER)
    if sys.executable == found:
        return found
    folder = tmp_path_factory.mktemp("conformance")
    # Our pip installs what we depend on, and a line names our sources: an editable install would install a pip and a
    # build system first, and all of that took as much CPU time as the tests.
    subprocess.run([found, "-m", "venv", "--without-pip", folder], check=True)
    inside = str(folder / "bin" / "python")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip = [sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", *needed], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "ropewalk.pth").write_text(f"{ROOT / 'src'}\n")
    return inside


@pytest.fixture(scope="module")
def verdicts(python: str, request: pytest.FixtureRequest) -> dict[str, batches.Verdict]:
    """Of all tests that were chosen: they run before the first of them is told, several at once."""
    # pytest's own, for this one item: it takes the time of them all.
    faulthandler.cancel_dump_traceback_later()
    chosen = batches.chosen_names(request)
    tests = [test for test in all_tests() if chosen & {test, test.partition(".")[0]} and test not in LEFT_OUT]
    return batches.run_all([python, str(RUNNER)], tests, AT_ONCE)


@pytest.mark.timeout(1800)  # the first waits for all; each has its own limit
def test_cpython(name: str, request: pytest.FixtureRequest) -> None:
    if name in LEFT_OUT:
        pytest.skip(LEFT_OUT[name])
    batches.tell(request.getfixturevalue("verdicts")[name])


@pytest.mark.timeout(1800)
def test_a_class_ends_by_itself_and_leaves_nothing(name: str, verdicts: dict[str, batches.Verdict]) -> None:
    batches.tell(verdicts[name])


def test_everything_left_out_exists() -> None:
    if find_interpreter() is None:
        pytest.skip(NO_INTERPRETER)
    # Names of one version are not those of another; the newest has most of them.
    assert len(set(LEFT_OUT) & set(all_tests())) >= len(LEFT_OUT) // 2
    assert {batches.class_of(name) for name in LEFT_OUT} <= {batches.class_of(name) for name in all_tests()}
