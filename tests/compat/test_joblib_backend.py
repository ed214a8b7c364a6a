"""joblib over our workers: its own calls, as its users write them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

joblib: Any = pytest.importorskip("joblib")

from ropewalk.compat.joblib_registration import register_joblib_backend  # noqa: E402
from tests.scenarios.launchers import wait_until_gone  # noqa: E402

pytestmark = pytest.mark.usefixtures("shared_session")

delayed, Parallel = joblib.delayed, joblib.Parallel


@pytest.fixture(autouse=True)
def no_idle_workers() -> Iterator[None]:
    yield
    from ropewalk.compat.joblib_backend import end_idle_workers

    end_idle_workers()


@pytest.fixture
def two_workers() -> Iterator[None]:
    register_joblib_backend()
    with joblib.parallel_config(backend="ropewalk", n_jobs=2):
        yield


def test_it_is_registered_only_when_asked_for() -> None:
    source = """
import joblib, ropewalk
try:
    joblib.parallel_config(backend="ropewalk")
except ValueError:
    ropewalk.register_joblib_backend()
    joblib.parallel_config(backend="ropewalk")
    print("only then")
"""
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout == "only then\n"


@pytest.mark.parametrize("batch_size", ["auto", 1, 7])
def test_results_come_in_order_from_other_processes(two_workers: None, batch_size: int | str) -> None:
    results = Parallel(batch_size=batch_size)(delayed(lambda n: (n * n, os.getpid()))(n) for n in range(40))
    assert [square for square, _ in results] == [n * n for n in range(40)]
    assert os.getpid() not in {pid for _, pid in results}


def test_the_context_manager_of_old_works_as_well() -> None:
    register_joblib_backend()
    with joblib.parallel_backend("ropewalk", n_jobs=2, engine="local"):
        assert Parallel()(delayed(abs)(-n) for n in range(5)) == list(range(5))


def test_workers_stay_between_calls(two_workers: None) -> None:
    def workers() -> set[int]:
        return set(Parallel(batch_size=1)(delayed(os.getpid)() for _ in range(40)))

    assert len(workers() | workers() | workers()) <= 2


def test_workers_stay_between_calls_that_have_nothing_in_common() -> None:
    """Each of them makes a backend of its own."""
    register_joblib_backend()

    def workers(**options: Any) -> set[int]:
        return set(
            Parallel(n_jobs=2, backend="ropewalk", batch_size=1, **options)(delayed(os.getpid)() for _ in range(9))
        )

    first = workers()
    assert workers() | first | workers() == first | workers()
    assert len(first | workers()) <= 2
    with joblib.parallel_config(backend="ropewalk", n_jobs=2, name="others"):
        assert not first & set(Parallel(batch_size=1)(delayed(os.getpid)() for _ in range(9)))
    wait_until_gone(first)  # one executor is kept, and no more


def test_workers_that_idle_end_after_a_while() -> None:
    register_joblib_backend()
    with joblib.parallel_config(backend="ropewalk", n_jobs=2, idle_worker_timeout=0.2):
        pids = set(Parallel(batch_size=1)(delayed(os.getpid)() for _ in range(9)))
        wait_until_gone(pids)
        assert Parallel()(delayed(abs)(n) for n in (-1, -2)) == [1, 2]


@pytest.mark.parametrize("num_threads", [None, 3])
def test_numerical_threads_inside_are_as_many_as_asked_for(
    num_threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    register_joblib_backend()
    with joblib.parallel_config(backend="ropewalk", n_jobs=2, inner_max_num_threads=num_threads):
        found = Parallel()(delayed(os.getenv)(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"))
    assert found == [str(num_threads or 1)] * 2


def test_an_error_keeps_its_type_and_other_calls_go_on(two_workers: None) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            Parallel()(delayed(divmod)(1, n) for n in (1, 0, 2))
        assert Parallel()(delayed(abs)(n) for n in (-1, -2)) == [1, 2]


def test_an_error_ends_what_still_runs(two_workers: None, tmp_path: Path) -> None:
    def act(number: int) -> None:
        if number:
            time.sleep(3600)
            (tmp_path / "ran").touch()
        raise LookupError

    with pytest.raises(LookupError), Parallel() as parallel:
        parallel(delayed(act)(number) for number in range(2))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["generator", "generator_unordered"])
def test_results_can_be_generated(two_workers: None, kind: str) -> None:
    results = Parallel(return_as=kind)(delayed(abs)(-n) for n in range(20))
    assert sorted([next(results), *results]) == list(range(20))


def test_a_generator_can_be_dropped(two_workers: None) -> None:
    calls = [delayed(time.sleep)(0), *(delayed(time.sleep)(0.05) for _ in range(200))]
    results = Parallel(return_as="generator", batch_size=1, pre_dispatch="all")(calls)
    next(results)
    with pytest.warns(UserWarning, match="results? .*|tasks"):
        results.close()
    assert Parallel()(delayed(abs)(n) for n in (-1,)) == [1]


def test_a_call_may_take_no_longer_than_its_timeout(two_workers: None) -> None:
    with pytest.raises(multiprocessing.TimeoutError):
        Parallel(timeout=0.5)(delayed(time.sleep)(30) for _ in range(2))
    assert Parallel()(delayed(abs)(n) for n in (-1, -2)) == [1, 2]


def test_large_arrays_travel(two_workers: None) -> None:
    np = pytest.importorskip("numpy")
    data = np.ones(1_000_000)
    assert Parallel()(delayed(np.sum)(data + n) for n in range(4)) == [1e6, 2e6, 3e6, 4e6]


def test_calls_inside_of_calls_use_threads_of_the_worker(two_workers: None) -> None:
    def outer(number: int) -> list[tuple[int, int, bool]]:
        def inner(_: int) -> tuple[int, int, bool]:
            return number, os.getpid(), threading.current_thread() is threading.main_thread()

        return [(os.getpid(), *each) for each in Parallel(n_jobs=2)(delayed(inner)(n) for n in range(2))]

    for number, results in enumerate(Parallel()(delayed(outer)(n) for n in range(2))):
        for worker, from_number, pid, in_main in results:
            assert (from_number, pid, in_main) == (number, worker, False)


def test_the_number_of_jobs_means_what_it_means_to_joblib() -> None:
    register_joblib_backend()
    with joblib.parallel_config(backend="ropewalk"):
        everything = joblib.effective_n_jobs(-1)
        assert everything == len(os.sched_getaffinity(0))
        assert joblib.effective_n_jobs(3) == 3 and joblib.effective_n_jobs(-everything - 5) == 1
        with pytest.raises(ValueError, match="n_jobs == 0"):
            Parallel(n_jobs=0)(delayed(abs)(n) for n in range(2))
        # One job is no reason to start a worker.
        assert Parallel(n_jobs=1)(delayed(os.getpid)() for _ in range(2)) == [os.getpid()] * 2
        assert os.getpid() not in Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(4))


def test_options_reach_the_executor() -> None:
    register_joblib_backend()

    def begin() -> None:
        os.environ["BEGUN"] = "yes"

    with joblib.parallel_config(backend="ropewalk", n_jobs=2, initializer=begin, name="fits"):
        assert Parallel()(delayed(os.getenv)("BEGUN") for _ in range(2)) == ["yes", "yes"]
    with joblib.parallel_config(backend="ropewalk", n_jobs=2, engin="local"):
        with pytest.raises(TypeError, match="engin"):
            Parallel()(delayed(abs)(n) for n in range(2))
