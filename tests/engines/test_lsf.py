"""Requests to LSF are rendered as bsub takes them, and what bjobs and bhosts print becomes states and sizes."""

from __future__ import annotations

import json

import pytest

from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.engines.lsf import LsfEngine, LsfOptions, bsub_flags, read_bhosts, read_bjobs
from ropewalk.engines.resources import HostCapacity, Resources

SPEC = JobSpec(["python", "-m", "agent"], stdin=b"5ec7e7", resources=Resources(cpus=3.5, gpus=2, memory="6Gi"))
# As `bjobs -a -o "..." -json` of LSF 10.1 prints it: an array of which one task runs, and a job that is unknown.
BJOBS = """\
{
  "COMMAND":"bjobs",
  "JOBS":4,
  "RECORDS":[
    {"JOBID":"812", "JOBINDEX":"1", "JOB_NAME":"ropewalk-r.0123456789ab[1]", "STAT":"RUN",
     "EXIT_CODE":"", "EXIT_REASON":"", "PEND_REASON":"", "EXEC_HOST":"4*n1"},
    {"JOBID":"812", "JOBINDEX":"2", "JOB_NAME":"ropewalk-r.0123456789ab[2]", "STAT":"EXIT",
     "EXIT_CODE":"130", "EXIT_REASON":"TERM_OWNER: job killed by owner", "PEND_REASON":"", "EXEC_HOST":"n1"},
    {"JOBID":"813", "JOBINDEX":"0", "JOB_NAME":"other", "STAT":"PEND", "EXIT_CODE":"", "EXIT_REASON":"",
     "PEND_REASON":"Job's requirements for resource reservation not satisfied: 2 hosts;", "EXEC_HOST":""},
    {"JOBID":"7", "ERROR":"Job <7> is not found"}
  ]
}
"""


def status_of(**record: str) -> JobStatus:
    return read_bjobs(json.dumps({"RECORDS": [{"JOBID": "7", "JOBINDEX": "0", **record}]}))[0].status


def test_a_request_is_rendered_as_one_command() -> None:
    options = {"queue": "gpu", "project": "p1", "user_group": "vision", "folder": "/f", "gpu": "mode=shared"}
    text = LsfEngine({**options, "resources": ["select[x]"], "extra": ["-app", "a"]}).render(SPEC)
    command, script = text.split("\n", 1)
    assert command == (
        "bsub -J ropewalk-RUN.REQUEST -o /dev/null -rn -n 4 -R 'span[hosts=1]' -R 'rusage[mem=6144MB]' "
        "-gpu num=2:mode=shared -q gpu -P p1 -G vision -R 'select[x]' -app a <<'END'"
    )
    assert "exec >>/f/ropewalk-RUN/REQUEST/$((${LSB_JOBINDEX:-0} > 0 ? LSB_JOBINDEX - 1 : 0)).log 2>&1" in script
    assert script.endswith("exec python -m agent <&3 3<&-\nEND\n")
    assert "5ec7e7" not in text


def test_several_jobs_are_an_array_whose_tasks_count_from_one() -> None:
    assert bsub_flags(LsfOptions(), JobSpec(["x"]), 3, "name")[:2] == ["-J", "name[1-3]"]
    engine = LsfEngine()
    ids = engine._read_ids("Job <812> is submitted to default queue <normal>.\n", 3)
    assert ids == ["812[1]", "812[2]", "812[3]"]
    assert [engine._number(id) for id in ("812[1]", "812[2]", "812[3]", "813")] == [0, 1, 2, 0]
    assert engine._read_ids("Job <813> is submitted to queue <gpu>.\n", 1) == ["813"]
    assert engine._read_ids("Request aborted by esub. Job not submitted.\n", 1) is None


def test_memory_is_divided_where_the_cluster_reserves_it_for_each_slot() -> None:
    assert "rusage[mem=1536MB]" in bsub_flags(LsfOptions(reserve_per_task=True), SPEC, 1, "name")


def test_the_limit_of_the_run_comes_before_the_option() -> None:
    options = LsfOptions(time="1:00")
    assert bsub_flags(options, JobSpec(["x"], time_limit_s=5430), 1, "name")[-2:] == ["-W", "1:31"]
    assert bsub_flags(options, JobSpec(["x"]), 1, "name")[-2:] == ["-W", "1:00"]


def test_each_task_of_an_array_is_a_job() -> None:
    jobs = {job.id: job for job in read_bjobs(BJOBS)}
    assert list(jobs) == ["812[1]", "812[2]", "813"]
    assert [job.name for job in jobs.values()] == ["ropewalk-r.0123456789ab", "ropewalk-r.0123456789ab", "other"]
    assert [job.is_running for job in jobs.values()] == [True, False, False]
    assert jobs["812[1]"].status == JobStatus(JobState.RUNNING)
    assert jobs["812[2]"].status == JobStatus(JobState.ENDED, -2, "TERM_OWNER: job killed by owner")
    assert jobs["813"].status.reason == "Job's requirements for resource reservation not satisfied: 2 hosts;"


@pytest.mark.parametrize(
    ("state", "code", "reason", "expected", "words"),
    [
        ("DONE", "", "", 0, ""),
        ("EXIT", "7", "-", 7, ""),
        ("EXIT", "137", "", -9, "killed by signal 9"),
        ("EXIT", "140", "TERM_RUNLIMIT: job killed after reaching LSF run time limit", -12, "time limit of the run"),
        ("EXIT", "1", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", -9, "memory of the run"),
        ("EXIT", "", "", None, ""),
        ("EXIT", "255", "", 255, ""),
    ],
)
def test_the_end_of_a_job_is_told_as_that_of_a_process(
    state: str, code: str, reason: str, expected: int | None, words: str
) -> None:
    told = status_of(STAT=state, EXIT_CODE=code, EXIT_REASON=reason)
    assert (told.state, told.exit_code) == (JobState.ENDED, expected)
    assert words in told.reason
    assert bool(told.reason) == bool(words)


@pytest.mark.parametrize(
    ("state", "expected", "words"),
    [
        ("PSUSP", JobState.PENDING, "bresume"),
        ("SSUSP", JobState.RUNNING, "suspended by LSF"),
        ("UNKWN", JobState.RUNNING, "does not answer"),
    ],
)
def test_states_between_are_explained(state: str, expected: JobState, words: str) -> None:
    told = status_of(STAT=state)
    assert told.state is expected
    assert words in told.reason


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"RECORDS": [3]}', '{"RECORDS": 3}', "[" * 100_000])
def test_other_texts_are_no_answer_of_bjobs(text: str) -> None:
    with pytest.raises(ValueError):
        read_bjobs(text)


def test_the_slots_of_a_host_are_its_cpus() -> None:
    records = [
        {"HOST_NAME": "n1", "STATUS": "ok", "MAX": "16"},
        {"HOST_NAME": "n2", "STATUS": "unavail", "MAX": "8"},
        {"HOST_NAME": "login", "STATUS": "closed_Adm", "MAX": "-"},
    ]
    found = read_bhosts(json.dumps({"RECORDS": records}), gpus=4)
    assert [(host.name, host.room, host.is_usable) for host in found] == [
        ("n1", HostCapacity(16, 4), True),
        ("n2", HostCapacity(8, 4), False),
    ]
