"""Runs the tests, keeps what became of them, and reruns failures only where that is honest.

    python tests/run_tests.py test -n 2 -m "not soak"     run pytest with these arguments; results go to build/tests
    python tests/run_tests.py --again test                rerun what failed in it; further arguments go to pytest

A rerun answers one question: was it the test, or what else went on? It is allowed to turn a run green only if

1. the run ended by itself with failed tests (exit code 1), not with an internal error, a kill or an interrupt, and no
   worker of it died,
2. as many tests ran as were collected,
3. not more than MAX_FAILURES failed,
4. each of them passes RERUNS times in a row, beside BUSY processes that do nothing but compute, and
5. none of them is in the ledger (`known_flakes.toml`) with a date that is over.

What passes all of this is a flake. A new one is named, for the ledger; one that stays longer than its date is red.
The JUnit files of all runs stay.

As a command it is the parent of what tests orphan (`adopt_orphans`).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import datetime
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "tests"
LEDGER = Path(__file__).with_name("known_flakes.toml")

RERUNS = 5
BUSY = 8
MAX_FAILURES = 10
TESTS_FAILED = 1
"""The exit code of pytest where tests failed and nothing else happened."""
_SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What became of a run."""

    exit_code: int
    """Of the process, as its parent saw it."""
    collected: int = 0
    ran: int = 0
    failed: tuple[str, ...] = ()
    """Names of tests, as pytest takes them."""
    crashed: tuple[str, ...] = ()
    """Those of them in which a worker died."""


@dataclasses.dataclass(frozen=True, slots=True)
class Flake:
    """A line of the ledger."""

    test: str
    seen: str
    """What is known of it."""
    until: datetime.date


def why_not_again(record: Record | None, ledger: Mapping[str, Flake], today: datetime.date) -> str:
    """Why a rerun could not turn this run green; empty if it could."""
    if record is None:
        return "the run left no record: it was killed, or never began"
    if record.exit_code != TESTS_FAILED:
        return f"the run ended with exit code {record.exit_code}, and only {TESTS_FAILED} says that just tests failed"
    if record.crashed:
        return f"a worker died in {', '.join(record.crashed)}; that it lives the next time says nothing about why"
    if record.ran != record.collected:
        return f"{record.ran} of {record.collected} collected tests ran; what became of the others is not known"
    if not record.failed:
        return "the run failed, but no test of it did"
    if len(record.failed) > MAX_FAILURES:
        return f"{len(record.failed)} tests failed; more than {MAX_FAILURES} are no accident"
    over = [flake for test in record.failed if (flake := ledger.get(test)) and flake.until < today]
    if over:
        words = "; ".join(f"{flake.test} ({flake.seen}) since {flake.until}" for flake in over)
        return f"known flakes whose time is over: {words}"
    return ""


def read_ledger(path: Path = LEDGER) -> dict[str, Flake]:
    """The known flakes, by the names of the tests.

    Raises:
        ValueError: a line lacks something, or names a test twice.
    """
    flakes: dict[str, Flake] = {}
    for line in tomllib.loads(path.read_text()).get("flake", []):
        if line.keys() != {"test", "seen", "until"} or not isinstance(line["until"], datetime.date):
            raise ValueError(
                f"{path.name}: {line} needs test, seen (what is known) and until (a date), and nothing else"
            )
        if line["test"] in flakes:
            raise ValueError(f"{path.name}: {line['test']} is there twice")
        flakes[line["test"]] = Flake(**line)
    return flakes


def read_record(folder: Path) -> Record | None:
    """The record of a run, if it left one that is whole."""
    try:
        told = json.loads((folder / "record.json").read_text())
        return Record(told["exit_code"], told["collected"], told["ran"], tuple(told["failed"]), tuple(told["crashed"]))
    except (OSError, ValueError, KeyError):
        return None


def run(name: str, arguments: Sequence[str]) -> int:
    """Run pytest and keep its results; returns its exit code."""
    folder = RESULTS / name
    shutil.rmtree(folder, ignore_errors=True)  # so that nothing of an earlier run is taken for one of this
    folder.mkdir(parents=True)
    code = pytest([*arguments, f"--junitxml={folder / 'junit.xml'}", f"--record={folder / 'told.json'}"])
    with contextlib.suppress(OSError):  # without it, there is no record
        told = json.loads((folder / "told.json").read_text())
        if told["exit_code"] == code:  # it told of its end, and that was its end
            (folder / "record.json").write_text(json.dumps(told))
    return code


def run_again(name: str, arguments: Sequence[str]) -> int:
    """Rerun what failed, with these further arguments of pytest; 0 if all of it were flakes."""
    folder, ledger = RESULTS / name, read_ledger()
    record = read_record(folder)
    if reason := why_not_again(record, ledger, datetime.date.today()):
        print(f"==> not rerun, and red: {reason}", flush=True)
        return 1
    assert record
    print(f"==> failed in `make {name}`:", *record.failed, sep="\n      ", flush=True)
    print(f"==> rerun {RERUNS} times beside {BUSY} busy processes:", flush=True)
    with busy(BUSY):
        for number in range(RERUNS):
            kept = f"--junitxml={folder / f'again-{number}.xml'}"
            code = pytest(["-p", "no:cacheprovider", kept, *arguments, *record.failed])
            if code:
                print(f"==> red: failed again, in rerun {number + 1} of {RERUNS}", flush=True)
                return 1
    for test in record.failed:
        flake = ledger.get(test)
        known = (
            f"known until {flake.until}: {flake.seen}" if flake else f"NEW: look into it, or enter it in {LEDGER.name}"
        )
        print(f"==> a flake, {known}\n      {test}", flush=True)
    return 0


def pytest(arguments: Sequence[str]) -> int:
    """Run pytest in a process of its own; its exit code, negative if it was killed."""
    # Where no bytecode is kept, each of the thousands of processes that tests start would compile Ropewalk for itself.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment)
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # it has heard of the interrupt too, and ends what it has started
            return process.wait()


def adopt_orphans() -> None:
    """Go on in a child; this process waits for it, and for all whose parents end before them.

    Such as the processes of a launcher that a test kills: that nothing is left, tests know when somebody has waited for
    them. That would be the first process of the machine, which in a container may do so every two seconds, or never.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if not child:
        return
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # the child has heard of the interrupt too
            pid, status = os.wait()
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                sys.exit(code if code >= 0 else 128 - code)


@contextlib.contextmanager
def busy(number: int) -> Generator[None]:
    """Processes that do nothing but compute."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run, or rerun."""
    parser = argparse.ArgumentParser(description="Run tests and keep what became of them.")
    parser.add_argument("--again", action="store_true", help="rerun what failed in the run of this name")
    parser.add_argument("name", help="of the run, such as test or test-lab")
    options, arguments = parser.parse_known_args(argv)
    if options.again:
        return run_again(options.name, arguments)
    code = run(options.name, arguments)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    adopt_orphans()
    sys.exit(main())
