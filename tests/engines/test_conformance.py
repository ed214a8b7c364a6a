"""Every engine in the table passes the public suite, and the suite notices engines that do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from ropewalk.engines import ENGINES, make_engine
from ropewalk.engines.engine import Engine, JobSpec, JobState, JobStatus
from ropewalk.engines.local import LocalEngine
from ropewalk.testing.engine_conformance import EngineConformance


@pytest.mark.parametrize("test", EngineConformance.tests())
@pytest.mark.parametrize("name", sorted(ENGINES))
def test_engine(name: str, test: str) -> None:
    class Named(EngineConformance):
        def make_engine(self) -> Engine:
            return make_engine(name)

    getattr(Named(), test)()


class Careless(LocalEngine):
    """Not idempotent, knows nothing of unknown jobs, shows secrets, forgets exit codes."""

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        self._requests.clear()
        return super().submit(spec, count, run_id, request_id)

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        states = super().poll([id for id in ids if id in self._jobs])
        return {
            id: JobStatus(status.state, 0 if status.state is JobState.ENDED else None) for id, status in states.items()
        }

    def render(self, spec: JobSpec) -> str:
        return super().render(spec) + spec.stdin.decode()


@pytest.mark.parametrize(
    "test",
    [
        "test_submit_is_idempotent",
        "test_poll_knows_all_states_in_one_call",
        "test_exit_codes_and_signals_are_told_as_documented",
        "test_render_shows_the_job_and_no_secret_and_starts_nothing",
    ],
)
def test_the_suite_notices_a_careless_engine(test: str) -> None:
    class OfCareless(EngineConformance):
        patience_s = 5.0

        def make_engine(self) -> Engine:
            return Careless()

    with pytest.raises((AssertionError, KeyError)):
        getattr(OfCareless(), test)()


def test_the_suite_is_importable_without_pytest() -> None:
    code = "import ropewalk.testing.engine_conformance, sys; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
