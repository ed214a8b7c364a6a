"""Every engine in the table passes the public suite, and the suite notices engines that do not."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines import ENGINES
from ropewalk.engines.engine import Engine, JobSpec, JobState, JobStatus
from ropewalk.engines.local import LocalEngine
from ropewalk.testing.engine_conformance import EngineConformance
from ropewalk.testing.engine_under_test import EngineHangs
from tests.patience import wait_until


class TestLocal(EngineConformance):
    engine_name = "local"

    def lose(self, engine: Engine, id: str) -> None:
        assert isinstance(engine, LocalEngine)
        engine._jobs[id].process.kill()


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_engine_has_a_class_that_puts_it_through_the_suite(name: str) -> None:
    """Engines of clusters need a lab, and bring it in modules of their own; which say `engine_name = "..."`."""
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    classes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    named = {
        ast.literal_eval(line.value)
        for node in classes
        if node.name.startswith("Test") and "EngineConformance" in [ast.unparse(base) for base in node.bases]
        for line in node.body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "engine_name"
    }
    assert name in named, f"no class of tests/engines puts {name!r} through the suite, only {sorted(named)}"


class Careless(LocalEngine):
    """Not idempotent, knows nothing of unknown jobs, shows secrets, forgets exit codes, takes any option, and more."""

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._forgotten = os.open("/proc/self/stat", os.O_RDONLY)

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        self._requests.clear()
        environment = {**spec.environment, "TOKEN": spec.stdin.decode(errors="replace")[:4000].replace("\0", "")}
        return super().submit(dataclasses.replace(spec, environment=environment), count, run_id, request_id)

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        states = super().poll([id for id in ids if id in self._jobs])
        return {
            id: JobStatus(status.state, 0 if status.state is JobState.ENDED else None) for id, status in states.items()
        }

    def render(self, spec: JobSpec) -> str:
        return super().render(spec) + spec.stdin.decode()

    def hosts(self) -> list[str]:
        return ["0.0.0.0"]

    def runs(self) -> dict[str, list[str]]:
        return {}


@pytest.mark.parametrize(
    "test",
    [
        "test_submit_is_idempotent",
        "test_poll_knows_all_states_in_one_call",
        "test_exit_codes_and_signals_are_told_as_documented",
        "test_render_shows_the_job_and_no_secret_and_starts_nothing",
        "test_a_job_taken_away_from_outside_is_reported_with_words",
        "test_bad_options_are_refused_by_name",
        "test_capacities_and_addresses_make_sense",
        "test_no_secret_can_be_read_by_others",
        "test_nothing_of_the_engine_is_left_open",
    ],
)
def test_the_suite_notices_a_careless_engine(test: str) -> None:
    class OfCareless(EngineConformance):
        patience_s = 1.0

        def make_engine(self) -> Engine:
            return Careless()

        def lose(self, engine: Engine, id: str) -> None:
            assert isinstance(engine, LocalEngine)
            engine._jobs[id].process.kill()

    with pytest.raises((AssertionError, KeyError)):
        getattr(OfCareless(), test)()


def test_an_engine_that_hangs_is_told_with_where_it_is_and_the_suite_goes_on() -> None:
    # A command that reads the standard input, as one that asks for a password, held up the suite for ever, silently.
    read, write = os.pipe()

    class Hanging(LocalEngine):
        def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
            subprocess.run(["cat"], stdin=read, check=True)
            return []

    class OfHanging(EngineConformance):
        call_s = 0.2

        def make_engine(self) -> Engine:
            return Hanging()

    try:
        with pytest.raises(EngineHangs, match=r"submit\(\) of the engine has not returned within 0\.2 s") as caught:
            OfHanging().test_submit_is_idempotent()
        assert "stdin=subprocess.DEVNULL" in str(caught.value) and 'subprocess.run(["cat"]' in str(caught.value)
    finally:
        for fd in (write, read):
            os.close(fd)
        wait_until(lambda: not any(thread.name == "engine-submit" for thread in threading.enumerate()))


def test_a_launcher_that_hangs_is_told() -> None:
    class OfHanging(EngineConformance):
        engine_name = "local"
        call_s = 0.2

        def launch(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[str]:
            return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **popen_arguments)

    with pytest.raises(EngineHangs, match=r"another launcher has not submitted two jobs within 0\.2 s"):
        OfHanging().test_jobs_of_a_killed_launcher_end_or_are_found()


def test_the_suite_is_importable_without_pytest() -> None:
    code = "import ropewalk.testing.engine_conformance, sys; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
