"""What Slurm says of jobs is understood in the shapes of all its versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines.engine import JobState
from ropewalk.engines.slurm import SlurmEngine
from ropewalk.engines.slurm_jobs import (
    SlurmJob,
    expand_tasks,
    read_queue,
    read_sacct,
    read_scontrol,
    read_squeue,
    status_of,
)


def number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def record_22(id: int, state: str, wait_status: int = 0, array: int = 0, task: int | None = None, **more: Any) -> Any:
    """As 22.05 tells of a job (data_parser did not exist yet)."""
    told = {"job_id": id, "array_job_id": array, "array_task_id": task, "array_task_string": "", "job_state": state}
    return {**told, "exit_code": wait_status, "state_reason": "None", **_common(), **more}


def record_23_02(
    id: int, state: str, wait_status: int = 0, array: int = 0, task: int | None = None, **more: Any
) -> Any:
    """As 23.02 does (data_parser/v0.0.39): numbers are objects, states are still texts."""
    told = {"job_id": id, "array_job_id": number(array), "array_task_id": number(task), "array_task_string": ""}
    return {**told, "job_state": state, "exit_code": number(wait_status), "state_reason": "None", **_common(), **more}


def record_24(id: int, state: str, wait_status: int = 0, array: int = 0, task: int | None = None, **more: Any) -> Any:
    """As 23.11 and newer do (data_parser/v0.0.40 to v0.0.43): states are lists, exit codes are taken apart."""
    told = {"job_id": id, "array_job_id": number(array), "array_task_id": number(task), "array_task_string": ""}
    signal = wait_status & 0x7F
    code = {
        "status": ["SIGNALED" if signal else "ERROR" if wait_status else "SUCCESS"],
        "return_code": number(None if signal else wait_status >> 8),
        "signal": {"id": number(signal or None), "name": "KILL" if signal == 9 else ""},
    }
    return {**told, "job_state": [state], "exit_code": code, "state_reason": "None", **_common(), **more}


def _common() -> dict[str, Any]:
    return {"name": "ropewalk-f00d.0123456789ab", "user_name": "ada", "nodes": "n1", "partition": "main"}


RECORDS = pytest.mark.parametrize("record", [record_22, record_23_02, record_24])


def read(*records: Any) -> list[SlurmJob]:
    return read_squeue(json.dumps({"meta": {}, "jobs": records, "errors": [], "warnings": []}))


@RECORDS
@pytest.mark.parametrize(("wait_status", "expected"), [(0, 0), (7 << 8, 7), (9, -9), (15, -15)])
def test_exit_codes_are_read_from_each_shape(record: Any, wait_status: int, expected: int) -> None:
    [job] = read(record(8812, "FAILED" if wait_status else "COMPLETED", wait_status))
    assert job.id == "8812"
    status = status_of(job)
    assert (status.state, status.exit_code) == (JobState.ENDED, expected)


@RECORDS
def test_tasks_of_an_array_are_jobs_of_their_own(record: Any) -> None:
    started = record(8813, "RUNNING", array=8812, task=0)
    waiting = record(8812, "PENDING", array=8812, array_task_string="1,3-4", nodes="", state_reason="Resources")
    jobs = {job.id: job for job in read(started, waiting)}
    assert list(jobs) == ["8812_0", "8812_1", "8812_3", "8812_4"]
    assert status_of(jobs["8812_0"]).state is JobState.RUNNING
    assert status_of(jobs["8812_4"]).state is JobState.PENDING
    assert "nodes are busy" in status_of(jobs["8812_4"]).reason


@RECORDS
def test_an_array_whose_waiting_tasks_are_all_gone_is_no_job(record: Any) -> None:
    assert read(record(8812, "CANCELLED", array=8812)) == []


@RECORDS
@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ("TIMEOUT", -15, "time limit"),
        ("NODE_FAIL", None, "the node failed"),
        ("PREEMPTED", None, "higher priority"),
        ("OUT_OF_MEMORY", -9, "more memory"),
        ("CANCELLED", None, "was cancelled"),
        ("BOOT_FAIL", None, "booted"),
        ("DEADLINE", None, "deadline"),
    ],
)
def test_unusual_ends_are_named_and_explained(record: Any, state: str, code: int | None, words: str) -> None:
    wait_status = {"TIMEOUT": 15, "OUT_OF_MEMORY": 125}.get(state, 0)
    status = status_of(read(record(1, state, wait_status))[0])
    assert (status.state, status.exit_code) == (JobState.ENDED, code)
    assert status.reason.startswith(f"{state} on n1: ")
    assert words in status.reason


def test_flags_beside_a_state_are_understood() -> None:
    states = {"RUNNING": [], "CANCELLED": ["COMPLETING"], "PENDING": ["CONFIGURING"], "FAILED": ["REQUEUED"]}
    told = [record_24(1, "", job_state=[state, *flags]) for state, flags in states.items()]
    assert [status_of(job).state for job in read(*told)] == [
        JobState.RUNNING,
        JobState.RUNNING,  # its processes may be alive
        JobState.PENDING,
        JobState.PENDING,
    ]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "higher priority wait before it"),
        ("PartitionNodeLimit", "number of nodes"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "down, drained or reserved"),
        ("QOSMaxJobsPerUserLimit", "quality of service"),
        ("AssocGrpCpuLimit", "account"),
        ("JobHeldUser", "scontrol release"),
        ("DependencyNeverSatisfied", "has failed"),
        ("QOSMaxCpuPerJobLimit", "more than the quality of service allows a job"),
        ("AssocMaxWallDurationPerJobLimit", "may have in a job"),
        ("None", "not looked at it yet"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_reasons_of_waiting_are_said_in_words(reason: str, words: str) -> None:
    status = status_of(SlurmJob("1", "", "", "PENDING", reason))
    assert status.state is JobState.PENDING
    assert status.reason.startswith(reason) and words in status.reason


NEVER = ["BadConstraints", "DependencyNeverSatisfied", "ReservationDeleted", "AssocMaxWallDurationPerJobLimit"]
NEVER_HERE = ["PartitionTimeLimit", "AccountNotAllowed", "QOSNotAllowed", "QOSMinGRES", "QOSMaxCpuPerNode"]


@pytest.mark.parametrize("reason", [*NEVER, *NEVER_HERE])
def test_what_neither_time_nor_other_jobs_remove_is_not_waited_for(reason: str) -> None:
    """It was told and waited for without end."""
    here, later = (
        status_of(job)
        for job in read(
            record_24(1, "PENDING", state_reason=reason),
            # Slurm tells the reason of one of the partitions in which the job waits.
            record_24(3, "PENDING", state_reason=reason, partition="short,long"),
        )
    )
    [queued] = read_queue(f"1|PENDING|{reason}||main|ropewalk-f00d.0123456789ab\n", "ada")
    assert here.hopeless and status_of(queued).hopeless and here.state is JobState.PENDING
    assert later.hopeless == (reason in NEVER)
    assert not status_of(SlurmJob("1", "", "", "RUNNING", reason, partitions="main")).hopeless


@pytest.mark.parametrize(
    "reason",
    [
        *("None", "Resources", "Priority", "JobHeldAdmin", "JobHeldUser", "PartitionDown", "PartitionNodeLimit"),
        *("ReqNodeNotAvail, UnavailableNodes:n1", "QOSMaxJobsPerUserLimit", "QOSMaxCpuPerUserLimit", "InvalidAccount"),
        *("AssocGrpBillingMinutes", "AssocMaxJobsLimit", "AssocMaxCpuMinutesPerJobLimit", "SomethingNew"),
    ],
)
def test_what_may_pass_is_waited_for(reason: str) -> None:
    assert not status_of(read(record_24(1, "PENDING", state_reason=reason))[0]).hopeless


def test_files_that_a_node_cannot_open_are_told_from_signals() -> None:
    for job in (read(record_22(1, "FAILED", 53))[0], read_sacct("1|n|ada|FAILED|0:53|n1")[0]):
        status = status_of(job, "/home/ada/.ropewalk/slurm")
        assert status.exit_code is None and status.hopeless
        where = f"node {job.nodes}" if job.nodes else "its node"
        assert status.reason.startswith(f"{where} cannot open the job's files in the folder /home/ada/.ropewalk/slurm,")
        assert "set the option folder of the engine slurm" in status.reason and "exclude" in status.reason


def test_a_job_that_finds_no_credentials_names_the_folder_and_may_be_replaced() -> None:
    """Its output may be in the node's own folder, where the launcher does not see it."""
    status = status_of(read_sacct("1|n|ada|FAILED|78:0|n1")[0], "/scratch/jobs")
    assert (status.exit_code, status.hopeless) == (78, False)
    assert "node n1 cannot open the job's files in the folder /scratch/jobs" in status.reason


def test_a_new_state_counts_as_an_end_that_is_named() -> None:
    status = status_of(read(record_24(1, "EVAPORATED", 9))[0])
    assert (status.state, status.exit_code, status.reason) == (JobState.ENDED, -9, "EVAPORATED on n1")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": [1]}', '{"jobs": [{}]}', '{"jobs": null}'])
def test_what_is_no_answer_of_squeue_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read_squeue(text)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("3", [3]), ("0-2", [0, 1, 2]), ("1,5-6%2", [1, 5, 6]), ("[0-20:10]", [0, 10, 20]), ("1-2,...", [1, 2]), ("", [])],
)
def test_lists_of_tasks_are_expanded(text: str, tasks: list[int]) -> None:
    assert expand_tasks(text) == tasks


def test_scontrol_tells_the_same() -> None:
    text = (
        "JobId=7 ArrayJobId=6 ArrayTaskId=0 JobName=ropewalk-f00d.0123456789ab UserId=ada(1000) GroupId=a(1) "
        "JobState=FAILED Reason=NonZeroExitCode Dependency=(null) ExitCode=7:0 NodeList=n1 BatchHost=n1\n"
        "JobId=6 ArrayJobId=6 ArrayTaskId=1-2%1 JobName=x UserId=ada(1000) JobState=PENDING Reason=Resources "
        "ExitCode=0:0 NodeList=(null)\n"
        "JobId=9 JobName=two words UserId=bob(1001) JobState=RUNNING Reason=None ExitCode=0:0 NodeList=n2\n"
        "No jobs in the system\n"
    )
    jobs = read_scontrol(text)
    assert [(job.id, job.state, job.user) for job in jobs] == [
        ("6_0", "FAILED", "ada"),
        ("6_1", "PENDING", "ada"),
        ("6_2", "PENDING", "ada"),
        ("9", "RUNNING", "bob"),
    ]
    assert status_of(jobs[0]).exit_code == 7


def test_sacct_tells_of_jobs_that_the_queue_has_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = (
        "8812_0|ropewalk-f00d.0123456789ab|ada|COMPLETED|0:0|n1\n"
        "8812_1|ropewalk-f00d.0123456789ab|ada|CANCELLED by 1000|0:15|n2\n"
        "8812_[2-3]|ropewalk-f00d.0123456789ab|ada|PENDING|0:0|None assigned\n"
        "8813|somebody-elses|bob|COMPLETED|0:0|n1\n"
    )
    _pretend(tmp_path, "squeue", json.dumps({"jobs": []}))
    _pretend(tmp_path, "sacct", accounts)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    engine = SlurmEngine({"folder": str(tmp_path / "jobs")})
    states = engine.poll(["8812_0", "8812_1", "8812_2", "8813", "8814"])
    assert [status.state for status in states.values()] == [
        JobState.ENDED,
        JobState.ENDED,
        JobState.PENDING,
        JobState.LOST,  # a job that is not ours has only the number of one of ours, from another time
        JobState.LOST,
    ]
    assert [states[id].exit_code for id in ("8812_0", "8812_1")] == [0, -15]


@RECORDS
def test_an_engine_understands_a_squeue_of_each_version(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.engines.slurm.user_name", lambda: "ada")
    mine, others = record(1, "RUNNING"), record(2, "RUNNING", user_name="bob")
    _pretend(tmp_path, "squeue", json.dumps({"jobs": [mine, others, record(3, "FAILED", 7 << 8)]}))
    _pretend(tmp_path, "sacct", "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    engine = SlurmEngine({"folder": str(tmp_path / "jobs")})
    assert engine.runs() == {"f00d": ["1"]}
    states = engine.poll(["1", "2", "3"])
    assert [status.state for status in states.values()] == [JobState.RUNNING, JobState.LOST, JobState.ENDED]
    assert states["3"].exit_code == 7
    _pretend(tmp_path, "squeue", json.dumps({"jobs": []}))
    assert engine.poll(["3"])["3"].exit_code == 7, "what has ended stays as it was told"


def test_an_older_squeue_tells_of_this_users_jobs_alone_and_scontrol_of_how_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of `scontrol show job` lists the jobs of all users, whose names and remarks may read like fields.

    Such a remark made a job of this user's of it, in a run that was a path: `ropewalk stop` removed that folder.
    """
    (tmp_path / "jobs" / "ropewalk-f00d").mkdir(parents=True)
    (tmp_path / "thesis").mkdir()
    name, ended = "ropewalk-f00d.0123456789ab", "JobState=FAILED ExitCode=7:0 NodeList=n1"
    own = f"JobId=7 ArrayJobId=6 ArrayTaskId=0 JobName={name} UserId=ada(1000) {ended}\n"
    trap = "JobId=9 JobName=ropewalk-f00d/../../thesis.0123456789ab UserId=ada(1000) JobState=RUNNING"
    foreign = f"JobId=8 JobName=x UserId=bob(1001) JobState=RUNNING ExitCode=0:0 NodeList=n2 Comment=y {trap}\n"
    (tmp_path / "all").write_text(own + foreign)
    (tmp_path / "one").write_text(own)
    lines = [
        f"6_0|FAILED|NonZeroExitCode|n1|main|{name}",
        f"6_1|PENDING|Resources||main|{name}",
        "5|RUNNING|None|n1|main|odd | name",
    ]
    (tmp_path / "own").write_text("\n".join([*lines, "|"]) + "\n")
    no_json = 'case "$*" in *--json*) echo "unrecognized option" >&2; exit 1;; esac'
    _pretend_script(tmp_path, "squeue", f"{no_json}; cat {tmp_path}/own")
    _pretend_script(tmp_path, "scontrol", f'case "$*" in *6_0) cat {tmp_path}/one;; *) cat {tmp_path}/all;; esac')
    _pretend_script(tmp_path, "scancel", f'echo "$@" >> {tmp_path}/cancelled')
    monkeypatch.setattr("ropewalk.engines.slurm.user_name", lambda: "ada")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    engine = SlurmEngine({"folder": str(tmp_path / "jobs")})
    assert engine.runs() == {"f00d": ["6_1"]}
    assert engine.poll(["6_0"])["6_0"].exit_code == 7
    engine.cancel(["9", "6_1"])
    engine.close()
    assert (tmp_path / "cancelled").read_text() == "6_1\n"
    assert (tmp_path / "thesis").exists()


def test_a_job_whose_run_would_be_a_path_is_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.engines.slurm.user_name", lambda: "ada")
    named = {"ropewalk-f00d/../../thesis": "1", "ropewalk-.": "2", "ropewalk-f00d": "3"}
    records = [record_24(int(id), "RUNNING", name=f"{name}.0123456789ab") for name, id in named.items()]
    _pretend(tmp_path, "squeue", json.dumps({"jobs": records}))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert SlurmEngine({"folder": str(tmp_path / "jobs")}).runs() == {"f00d": ["3"]}


def _pretend_script(folder: Path, command: str, script: str) -> None:
    (folder / command).write_text(f"#!/bin/sh\n{script}\n")
    (folder / command).chmod(0o755)


def _pretend(folder: Path, command: str, printed: str) -> None:
    (folder / f"{command}.out").write_text(printed)
    path = folder / command
    path.write_text(f"#!/bin/sh\ncat {folder}/{command}.out\n")
    path.chmod(0o755)
