"""The environment of processes: that of the program in the moment in which it starts them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import ropewalk
from tests.lab import Lab
from tests.scenarios.environment_of_processes import nested, of_a_process, of_a_worker, tell, variables
from tests.scenarios.hosts import cluster_of

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def test_a_process_has_the_variables_of_the_moment_in_which_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "CUDA_VISIBLE_DEVICES", "GONE")
    monkeypatch.setenv("GONE", "not yet")
    with ropewalk.Session():  # its agent has what is there now
        monkeypatch.delenv("GONE")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        queue = ropewalk.Queue()
        processes: list[ropewalk.Process] = []
        for rank in range(3):  # the next rank is set before the process with the last one is there
            monkeypatch.setenv("RANK", str(rank))
            processes.append(ropewalk.Process(target=tell, args=(queue, names)))
            processes[-1].start()
        monkeypatch.delenv("RANK")
        found = [queue.get() for _ in processes]
        for process in processes:
            process.join()
            process.close()
        assert sorted(each["RANK"] for each in found) == ["0", "1", "2"]
        assert {(each["CUDA_VISIBLE_DEVICES"], each["GONE"]) for each in found} == {("1", None)}
        with ropewalk.Pool(1, maxtasksperchild=1) as pool:
            monkeypatch.setenv("RANK", "of the first one's successors")
            pool.apply(variables, (names,))
            seen = [pool.apply(variables, (names,))["RANK"] for _ in range(3)]  # the next worker is started ahead
            assert seen[-1] == "of the first one's successors"


def test_a_change_that_was_taken_back_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent inherited what was set when it started; the process has what is set when it starts."""
    monkeypatch.setenv("MODE", "first")
    with ropewalk.Session():
        assert of_a_process("MODE") == {"MODE": "first"}
        monkeypatch.setenv("MODE", "second")
        assert of_a_process("MODE") == {"MODE": "second"}
        monkeypatch.setenv("MODE", "first")
        assert of_a_process("MODE") == {"MODE": "first"}


def test_a_process_has_no_limit_of_threads_and_a_worker_one_for_each_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    with ropewalk.Session():
        assert of_a_process(*THREADS) == dict.fromkeys(THREADS)
        assert of_a_worker(THREADS) == dict.fromkeys(THREADS, "1")
        assert of_a_worker(THREADS, resources=ropewalk.Resources(cpus=2)) == dict.fromkeys(THREADS, "2")
        monkeypatch.setenv("OMP_NUM_THREADS", "3")  # OpenBLAS falls back to it, if nothing else is said of OpenBLAS
        with_their_own = dict(zip(THREADS, ("3", None, "1"), strict=True))
        assert of_a_process(*THREADS) == {**with_their_own, "NUMBA_NUM_THREADS": None}
        assert of_a_worker(THREADS) == with_their_own


def test_processes_inside_processes_have_the_variables_of_those(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = ("RANK", "OUTER", "OMP_NUM_THREADS")
    with ropewalk.Pool(1) as pool:
        monkeypatch.setenv("OUTER", "later")  # not in the worker any more
        process, worker, wide = pool.apply(nested, (names,))
    assert process == {"RANK": "inner", "OUTER": None, "OMP_NUM_THREADS": "1"}
    assert worker == {"RANK": "inner", "OUTER": None, "OMP_NUM_THREADS": "1"}
    assert wide["OMP_NUM_THREADS"] == "2"


ELSEWHERE = """
    def variables(*names):
        return {name: os.environ.get(name) for name in names}

    os.environ["PATH"] = "/opt/mine:" + os.environ["PATH"]
    with session() as here:
        with rw.Pool(1, session=here) as pool:
            pool.apply(where)
        os.environ["RANK"] = "1"
        with rw.Pool(1, session=here) as pool:
            said = pool.apply(variables, ("PATH", "RANK", "LAUNCHERS_OWN", "TMPDIR"))
    say(json.dumps(said))
    say(json.dumps(variables("PATH", "TMPDIR")))
"""


def test_another_host_keeps_its_variables_and_gets_what_the_program_has_changed(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 1) as cluster:
        script = cluster.launch(
            ELSEWHERE, LAUNCHERS_OWN="1", TMPDIR="/tmp/launcher", PATH=f"/launcher:{os.environ['PATH']}"
        )
        there, here = json.loads(script.line()), json.loads(script.line())
    assert (there["RANK"], there["LAUNCHERS_OWN"]) == ("1", None)
    assert there["TMPDIR"] != here["TMPDIR"]
    assert "/launcher" in here["PATH"] and "/launcher" not in there["PATH"]
    assert there["PATH"].startswith("/opt/mine:")
