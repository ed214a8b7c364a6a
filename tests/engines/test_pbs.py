"""Requests to PBS are rendered as qsub takes them, and what qstat and pbsnodes print becomes states and sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.engines.pbs import PbsEngine, PbsOptions, qsub_flags, read_pbsnodes, read_qstat
from ropewalk.engines.resources import HostCapacity, Resources

SPEC = JobSpec(["python", "-m", "agent"], stdin=b"5ec7e7", resources=Resources(cpus=3.5, gpus=2, memory="6Gi"))
# As `qstat -x -t -f -F json` of OpenPBS prints it, shortened: an array of which one task runs, and a held job.
QSTAT = """\
{
    "timestamp":1615924938,
    "pbs_version":"20.0.1",
    "pbs_server":"pbs",
    "Jobs":{
        "12[].pbs":{"Job_Name":"ropewalk-r.0123456789ab", "Job_Owner":"ada@login", "job_state":"B", "array":"True"},
        "12[0].pbs":{"Job_Name":"ropewalk-r.0123456789ab", "job_state":"R", "exec_host":"n1/0*4", "array_index":"0"},
        "12[1].pbs":{"Job_Name":"ropewalk-r.0123456789ab", "job_state":"X", "Exit_status":7, "array_index":"1"},
        "12[2].pbs":{"Job_Name":"ropewalk-r.0123456789ab", "job_state":"Q",
            "comment":"Not Running: Insufficient amount of resource: ncpus"},
        "13.pbs":{"Job_Name":"STDIN", "job_state":"H", "comment":"Job held by ada on Tue Mar 16"}
    }
}
"""


def status_of(**record: Any) -> JobStatus:
    return read_qstat(json.dumps({"Jobs": {"7.pbs": {"Job_Name": "x", **record}}}))[0].status


def test_a_request_is_rendered_as_one_command() -> None:
    options = {"queue": "gpu", "account": "vision", "project": "p1", "folder": "/f", "extra": ["-m", "n"]}
    text = PbsEngine(options).render(SPEC)
    command, script = text.split("\n", 1)
    assert command == (
        "qsub -N ropewalk-RUN.REQUEST -S /bin/bash -j oe -o /dev/null -C '' -r n "
        "-l select=1:ncpus=4:mem=6144mb:ngpus=2 -l place=pack -q gpu -A vision -P p1 -m n <<'END'"
    )
    assert "exec >>/f/ropewalk-RUN/REQUEST/${PBS_ARRAY_INDEX:-0}.log 2>&1" in script
    assert "credentials=/f/ropewalk-RUN/REQUEST/${PBS_ARRAY_INDEX:-0}.stdin" in script
    assert script.endswith("exec python -m agent <&3 3<&-\nEND\n")
    assert "5ec7e7" not in text


def test_several_jobs_are_an_array_and_the_limit_of_the_run_comes_before_the_option() -> None:
    spec = JobSpec(["x"], time_limit_s=5430)
    flags = qsub_flags(PbsOptions(time="1:00:00", chunk="model=a100", place=""), spec, 3, "name")
    assert flags[-6:] == ["-J", "0-2", "-l", "select=1:ncpus=1:model=a100", "-l", "walltime=1:31:00"]
    assert "walltime=1:00:00" in qsub_flags(PbsOptions(time="1:00:00"), JobSpec(["x"]), 1, "name")


@pytest.mark.parametrize(
    ("printed", "count", "ids"),
    [
        ("12.pbs.cluster\n", 1, ["12.pbs.cluster"]),
        ("12[].pbs\n", 2, ["12[0].pbs", "12[1].pbs"]),
        ("12.pbs\n", 2, None),
        ("12[].pbs\n", 1, None),
        ("qsub: waiting for job 12.pbs to start\n", 1, None),
    ],
)
def test_the_ids_of_jobs_come_from_what_qsub_prints(printed: str, count: int, ids: list[str] | None) -> None:
    assert PbsEngine()._read_ids(printed, count) == ids


def test_tasks_of_arrays_take_the_place_of_the_array() -> None:
    jobs = {job.id: job for job in read_qstat(QSTAT)}
    assert list(jobs) == ["12[0].pbs", "12[1].pbs", "12[2].pbs", "13.pbs"]
    assert {job.name for id, job in jobs.items() if id != "13.pbs"} == {"ropewalk-r.0123456789ab"}
    assert [job.is_running for job in jobs.values()] == [True, False, False, False]
    assert jobs["12[0].pbs"].status == JobStatus(JobState.RUNNING)
    assert jobs["12[1].pbs"].status == JobStatus(JobState.ENDED, 7)
    assert jobs["12[2].pbs"].status.reason == "Not Running: Insufficient amount of resource: ncpus"
    assert jobs["13.pbs"].status.state is JobState.PENDING
    assert jobs["13.pbs"].status.reason.startswith("held; qrls releases it: Job held by ada")


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (271, -15, "signal 15"),
        (265, -9, "signal 9"),
        (137, -9, "signal 9"),
        (-27, -9, "more memory than it had asked for"),
        (-29, None, "time limit"),
        (-99, None, "Exit_status -99"),
    ],
)
def test_the_end_of_a_job_is_told_as_that_of_a_process(status: int, code: int | None, words: str) -> None:
    told = status_of(job_state="F", Exit_status=status)
    assert (told.state, told.exit_code) == (JobState.ENDED, code)
    assert words in told.reason
    assert bool(told.reason) == bool(words)


def test_a_job_that_was_deleted_before_it_started_has_no_exit_code() -> None:
    assert status_of(job_state="F") == JobStatus(JobState.ENDED, None, "it was deleted before it started")


@pytest.mark.parametrize("text", ["", "[]", '{"Jobs": {"7.pbs": 3}}', '{"Jobs": {"7.pbs": {}}}', "[" * 100_000])
def test_other_texts_are_no_answer_of_qstat(text: str) -> None:
    with pytest.raises(ValueError):
        read_qstat(text)


def test_the_virtual_nodes_of_a_host_are_one_host() -> None:
    def node(host: str, **more: Any) -> dict[str, Any]:
        has = {"host": host, "ncpus": 8, "mem": "16777216kb", "ngpus": 1}
        return {"state": "free", "resources_available": has, **more}

    nodes = {"n1[0]": node("n1"), "n1[1]": node("n1"), "n2": node("n2", state="down,offline"), "bare": {"pcpus": 2}}
    first, second, bare = read_pbsnodes(json.dumps({"nodes": nodes}))
    assert (first.name, first.is_usable, first.room) == ("n1", True, HostCapacity(16, 2, 32 << 30))
    assert (second.name, second.is_usable) == ("n2", False)
    assert bare.room == HostCapacity(2, 0, None)
