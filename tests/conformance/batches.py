"""Runs CPython's test classes, some in each process, several at once, and gives every test a verdict of its own.

    batch (classes) ── process: test, test, test that hangs ──▶ ended after its limit
                    └─ process: the rest ──▶ its own end        (checked too: see `judge_end`)

A process for each test would be cleaner still, but starting 280 of them, and what each
of them starts for its first object, took most of the time. One for each class still took 1 s of CPU time each.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.runner import FAILED, PASSED
from tests.patience import PATIENCE_S

FOLDER = Path(__file__).parent
#: In the environment of all that a batch starts, so that what is left of it can be found.
MARK = "CONFORMANCE_BATCH"
LIMIT_S = PATIENCE_S  # of one test
MAX_ENDS = 3  # processes for one batch: what ends more than these shows nothing new
MIN_TESTS = 20  # of a batch: classes are put together until there are this many


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    word: str
    """"passed", "failed" or "skipped"."""
    words: str = ""
    """Why, and for a failure what the process had printed."""


def run_all(runner: Sequence[str], tests: list[str], at_once: int) -> dict[str, Verdict]:
    """The verdict for each test, and for each class, by its name alone, that of the end of its process.

    Args:
        runner: the command that runs tests, to which names, `--limit` and `--verdicts` are added.
        tests: their names.
        at_once: how many batches run beside each other.
    """
    verdicts: dict[str, Verdict] = {}
    with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
        # The big ones first, so that none of them is left for the end, when the others have nothing to do.
        largest_first = sorted(put_together(tests), key=len, reverse=True)
        for verdict in threads.map(lambda batch: run_batch(runner, batch), largest_first):
            verdicts |= verdict
    return verdicts


def put_together(tests: list[str]) -> list[list[str]]:
    """Batches of whole classes."""
    classes: dict[str, list[str]] = {}
    for test in tests:
        classes.setdefault(class_of(test), []).append(test)
    batches: list[list[str]] = []
    for members in classes.values():
        if batches and len(batches[-1]) < MIN_TESTS:
            batches[-1] += members
        else:
            batches.append(members)
    return batches


def chosen_names(request: pytest.FixtureRequest) -> set[str]:
    """The parameters "name" of the tests of this module that run now."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    ours = [item for item in items if item.module is request.module and not item.get_closest_marker("skip")]
    return {str(item.callspec.params["name"]) for item in ours}


def class_of(test: str) -> str:
    return test.partition(".")[0]


def run_batch(runner: Sequence[str], tests: list[str]) -> dict[str, Verdict]:
    """A test that ends the process fails, and those after it get a new one."""
    verdicts: dict[str, Verdict] = {}
    for _ in range(MAX_ENDS):
        verdicts |= run_process(runner, [test for test in tests if test not in verdicts])
        if verdicts.keys() >= set(tests):
            return verdicts
    why = f"not run: {MAX_ENDS} tests before it ended the processes that ran them"
    return {test: Verdict("failed", why) for test in tests} | verdicts


def run_process(runner: Sequence[str], tests: list[str]) -> dict[str, Verdict]:
    """Verdicts for the tests, up to one that ended the process, and for the end of their classes."""
    with surroundings() as (folder, environment):
        lines = folder / "verdicts"
        command = [*runner, *tests, "--limit", str(LIMIT_S), "--verdicts", lines]
        # Output goes to a file: the end of a pipe would come only with the end of all that inherited it.
        with open(folder / "output", "w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder / "cwd", env=environment)
            try:
                code: int | str = process.wait(LIMIT_S * (len(tests) + 2))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = "none, it did not end"
        printed = (folder / "output").read_bytes()
        verdicts = read_verdicts(lines, tests, printed)
        end = judge_end(code, verdicts, environment, printed)
        return verdicts | {class_of(test): end for test in tests}


def read_verdicts(lines: Path, tests: list[str], printed: bytes) -> dict[str, Verdict]:
    verdicts: dict[str, Verdict] = {}
    begun: dict[str, Any] | None = None
    for line in lines.read_text().splitlines() if lines.exists() else []:
        told = json.loads(line)
        if told["verdict"] == "begun":
            begun = told
        else:  # Python 3.12.1 does not begin what a decorator skips
            start = begun["printed"] if begun else told["printed"]
            said = printed[start : told["printed"]].decode(errors="replace")
            verdicts[told["test"]] = Verdict(told["verdict"], f"{told['words']}\n{said}".strip())
            begun = None
    if begun:
        said = printed[begun["printed"] :].decode(errors="replace")
        verdicts[begun["test"]] = Verdict("failed", f"it ended the process, or took longer than {LIMIT_S} s\n{said}")
        return verdicts
    # No test ended the process, but something of the class: its setUpClass, for one.
    why = f"it was not run\n{printed.decode(errors='replace')}"
    return {test: Verdict("failed", why) for test in tests} | verdicts


def judge_end(code: int | str, verdicts: dict[str, Verdict], environment: dict[str, str], printed: bytes) -> Verdict:
    """The process shall end by itself and leave nothing; what it leaves is ended here."""
    left = wait_until_gone(environment[MARK])
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    said = f"exit code {code}\n{printed.decode(errors='replace')}"
    all_passed = all(verdict.word != "failed" for verdict in verdicts.values())
    if code not in (PASSED, FAILED) or (all_passed and code != PASSED):
        return Verdict("failed", said)
    files = [name for name in os.listdir(environment["TMPDIR"]) if not name.startswith("pymp-")]
    if all_passed and (left or files):
        return Verdict("failed", f"left processes {left}, files {files}\n{said}")
    return Verdict("passed")


@contextlib.contextmanager
def surroundings() -> Generator[tuple[Path, dict[str, str]]]:
    """Folders for one process, and an environment that marks what it starts. Short paths: those of sockets are."""
    folder = Path(tempfile.mkdtemp(prefix="cf-"))
    try:
        for name in ("cwd", "tmp"):  # bodies write into both
            (folder / name).mkdir()
        temporary = str(folder / "tmp")
        own = {MARK: str(folder), "TMPDIR": temporary, "XDG_RUNTIME_DIR": temporary}
        # Where fork servers find `retargeted`.
        path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
        yield folder, os.environ | own | {"PYTHONPATH": path}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_gone(mark: str) -> dict[int, str]:
    deadline = time.monotonic() + PATIENCE_S
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def marked_processes(mark: str) -> dict[int, str]:
    """Command by pid."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
    return found


def tell(verdict: Verdict) -> None:
    """Say it to pytest."""
    if verdict.word == "skipped":
        pytest.skip(verdict.words)
    if verdict.word != "passed":
        pytest.fail(verdict.words, pytrace=False)
