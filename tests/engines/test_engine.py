"""What every engine has from its base class: requests are submitted once, and wholly or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import pytest

from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus
from ropewalk.engines.local import LocalEngine
from ropewalk.engines.mpi import MpiEngine
from ropewalk.errors import EngineError

SPEC = JobSpec(["agent"])


class NoSubmit(Engine):
    name = "listed"

    def __init__(self, options: object = None) -> None:  # does not call `Engine.__init__`, as many do not
        self.started: list[str] = []
        self.cancelled: list[str] = []

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        return {id: JobStatus(JobState.RUNNING) for id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        with self._lock:
            self.cancelled += ids

    def find(self, run_id: str) -> list[str]:
        return [id for id in self.started if id.startswith(run_id) and id not in self.cancelled]

    def logs(self, id: str) -> str:
        return ""

    def render(self, spec: JobSpec) -> str:
        return str(spec)

    def check(self) -> list[EngineFinding]:
        return []


class Listed(NoSubmit):
    most = 100
    error: BaseException = EngineError("the cluster is full")

    def submit_one(self, spec: JobSpec, run_id: str, request_id: str, number: int) -> str:
        if len(self.started) == self.most:
            raise self.error
        self.started.append(f"{run_id}/{request_id}/{number}")
        return self.started[-1]


def test_a_request_is_submitted_once_for_each_run() -> None:
    engine = Listed()
    ids = engine.submit(SPEC, 2, "run", "a")
    assert ids == ["run/a/0", "run/a/1"]
    ids.clear()  # the caller's own list
    assert engine.submit(SPEC, 2, "run", "a") == ["run/a/0", "run/a/1"]
    assert engine.submit(SPEC, 1, "other", "a") == ["other/a/0"]
    assert engine.submit(SPEC, 0, "run", "none") == []
    assert engine.started == ["run/a/0", "run/a/1", "other/a/0"]


@pytest.mark.parametrize("error", [EngineError("the cluster is full"), KeyboardInterrupt(), RuntimeError("a bug")])
def test_what_was_begun_is_cancelled_if_the_rest_cannot_be(error: BaseException) -> None:
    engine = Listed()
    engine.most, engine.error = 3, error
    engine.submit(SPEC, 1, "run", "before")
    with pytest.raises(type(error)):
        engine.submit(SPEC, 3, "run", "a")
    assert engine.cancelled == ["run/a/0", "run/a/1"]
    assert engine.find("run") == ["run/before/0"]
    engine.most = 100
    assert len(engine.submit(SPEC, 3, "run", "a")) == 3, "nothing was remembered of the request that failed"


def test_the_first_error_is_raised_also_if_cancelling_fails() -> None:
    class Gone(Listed):
        most = 1

        def cancel(self, ids: Sequence[str]) -> None:
            raise EngineError("the cluster is gone")

    with pytest.raises(EngineError, match="full"):
        Gone().submit(SPEC, 2, "run", "a")


def test_an_engine_may_submit_many_at_once() -> None:
    class Array(NoSubmit):
        def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> Iterable[str]:
            self.started += [f"{run_id}_{number}" for number in range(count)]
            return self.started[-count:]

    engine = Array()
    assert engine.submit(SPEC, 3, "run", "a") == engine.submit(SPEC, 3, "run", "a") == ["run_0", "run_1", "run_2"]
    assert len(engine.started) == 3


def test_an_engine_with_a_submit_of_its_own_goes_on_working() -> None:
    """As engines of others were written, with a lock and a table of their own."""

    class Older(NoSubmit):
        def __init__(self) -> None:
            super().__init__()
            self._lock = threading.Lock()  # type: ignore[assignment]
            self._requests: dict[tuple[str, str], list[str]] = {}

        def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
            with self._lock:
                return self._requests.setdefault(
                    (run_id, request_id), [f"{run_id}-{number}" for number in range(count)]
                )

    engine = Older()
    assert engine.submit(SPEC, 2, "run", "a") == ["run-0", "run-1"]
    engine.cancel(["run-0"])


def test_an_engine_without_time_limits_says_so_once_where_one_is_given(caplog: pytest.LogCaptureFixture) -> None:
    # The engines local and mpi took `--time 2h`, and nothing ended after two hours.
    class Endless(Listed):
        instead_of_time_limit = "an alarm clock does"

    limited = JobSpec(["agent"], time_limit_s=7200)
    engine = Endless()
    engine.submit(SPEC, 1, "run", "a")
    Listed().submit(limited, 1, "run", "a")
    assert not caplog.records
    for request in ("b", "c"):
        engine.submit(limited, 1, "run", request)
    [told] = caplog.records
    assert told.getMessage() == (
        "the engine 'listed' ends no job after its time limit of 2h00m (time_limit_s, --time); an alarm clock does"
    )
    assert LocalEngine.instead_of_time_limit and MpiEngine.instead_of_time_limit


def test_an_engine_that_does_not_submit_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"NoSubmit does not say how jobs are submitted: write submit_one\(\)"):
        NoSubmit()


def test_threads_that_ask_for_the_same_request_get_the_same_jobs() -> None:
    engine = Listed()
    together = threading.Barrier(4)
    found: list[list[str]] = []

    def ask() -> None:
        together.wait(60)
        found.append(engine.submit(SPEC, 20, "run", "a"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engine.started) == 20 and all(ids == engine.started for ids in found)
