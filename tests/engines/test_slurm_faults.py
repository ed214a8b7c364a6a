"""What goes wrong on a real Slurm cluster, and what the engine says of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.engines.resources import Resources
from ropewalk.engines.slurm import SlurmEngine
from ropewalk.errors import EngineError
from tests.engines.test_slurm_steps import launcher_environment
from tests.lab.slurm import CPUS_PER_NODE, KILL_WAIT_S, SlurmCluster, new_cluster
from tests.patience import PATIENCE_S, wait_until

FOREVER = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def engine(slurm: SlurmCluster, run: str) -> Iterator[SlurmEngine]:
    with_cluster = SlurmEngine(slurm.options)
    yield with_cluster
    _end(with_cluster, run)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], SlurmCluster]]:
    """Starts a cluster of a number of nodes for this test alone, with its commands on the PATH."""
    with contextlib.ExitStack() as stack:

        def start_cluster(num_nodes: int) -> SlurmCluster:
            cluster = stack.enter_context(new_cluster(tmp_path, num_nodes))
            for name, value in cluster.environment.items():
                monkeypatch.setenv(name, value)
            return cluster

        yield start_cluster


@pytest.fixture
def run() -> str:
    return os.urandom(8).hex()


def _end(engine: SlurmEngine, run: str) -> None:
    ids = engine.find(run)
    engine.cancel(ids)
    wait_until(lambda: all(status.state is not JobState.RUNNING for status in engine.poll(ids).values()))
    engine.close()


def python(code: str, **facts: object) -> JobSpec:
    return JobSpec(command=[sys.executable, "-c", code], **facts)  # pyright: ignore[reportArgumentType]


def start(engine: SlurmEngine, spec: JobSpec, run: str) -> str:
    """A job that is up."""
    [id] = engine.submit(spec, 1, run, str(time.monotonic_ns()))
    wait_until(lambda: "up" in engine.logs(id))
    return id


def end_of(engine: SlurmEngine, id: str, timeout_s: float = PATIENCE_S) -> JobStatus:
    wait_until(lambda: engine.poll([id])[id].state is JobState.ENDED, timeout_s=timeout_s)
    return engine.poll([id])[id]


@dataclass
class TimedJob:
    """A job whose time has passed; Slurm looks at that every 30 s, so it is started first and asked for last."""

    engine: SlurmEngine
    id: str


@pytest.fixture(scope="module")
def timed_job(slurm_cluster: SlurmCluster) -> Iterator[TimedJob]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm_cluster.environment.items():
            patch.setenv(name, value)
        # On a node where no other test needs all CPUs or the node's death, and with a folder of its own.
        folder, node = str(slurm_cluster.folder / "timed"), list(slurm_cluster.nodes)[-1]
        engine = SlurmEngine({"folder": folder, "nodelist": node})
        code = (
            "import signal, time\n"
            "for number in (10, 15):\n"
            "    signal.signal(number, lambda number, _: print('heard', number, flush=True))\n"
            "print('up', flush=True)\n"
            "while True: time.sleep(0.1)"
        )
        id = start(engine, python(code, time_limit_s=600), "71e7")
        slurm_cluster.run("scontrol", "update", f"JobId={id}", "TimeLimit=0")
        yield TimedJob(engine, id)
        _end(engine, "71e7")


def test_a_job_whose_time_has_passed_is_still_there_until_slurm_looks(slurm: SlurmCluster, timed_job: TimedJob) -> None:
    assert timed_job.engine.poll([timed_job.id])[timed_job.id].state is JobState.RUNNING


# --- refused before Slurm would accept it and wait for ever -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "spec", "count", "words"),
    [
        ({"partition": "gpuu"}, python("pass"), 1, ["no partition 'gpuu'", "main", "short"]),
        ({}, python("pass"), 99, ["can hold 48 jobs of 1 CPU", "99 were asked for", "for ever"]),
        ({"exclusive": True}, python("pass"), 4, ["can hold 3 jobs", "4 were asked for"]),
        ({}, python("pass", resources=Resources(cpus=17)), 1, ["17 CPUs", "largest have 16 CPUs", "for ever"]),
        ({}, python("pass", resources=Resources(gpus=1)), 1, ["1 GPU", "no GPU"]),
        ({}, python("pass", resources=Resources(memory="20G")), 1, ["MiB of memory", "16000 MiB"]),
        ({"partition": "short"}, python("pass", time_limit_s=3600), 1, ["1:00:00", "0:10:00", "short"]),
        ({"partition": "short", "time": "2:00:00"}, python("pass"), 1, ["2:00:00", "0:10:00"]),
        ({"partition": "members", "account": "guests"}, python("pass"), 1, ["Invalid account", "option account"]),
        ({"constraint": "a100"}, python("pass"), 1, ["constraint=a100", "main"]),
        ({"extra": "--no-such-flag"}, python("pass"), 1, ["no-such-flag"]),
        ({"reservation": "mine"}, python("pass"), 1, ["reservation", "scontrol show reservation"]),
    ],
)
def test_what_could_never_run_is_refused_by_name(
    slurm: SlurmCluster, options: dict[str, object], spec: JobSpec, count: int, words: list[str], run: str
) -> None:
    engine = SlurmEngine({**slurm.options, **options})
    with pytest.raises(EngineError) as refusal:
        engine.submit(spec, count, run, "a")
    assert all(word in str(refusal.value) for word in words), refusal.value
    assert engine.find(run) == []
    assert list(Path(str(slurm.options["folder"])).glob("*/*")) == [], "no credentials may be left"
    engine.close()


def test_a_process_that_fits_on_no_node_is_refused_and_others_fill_nodes(slurm: SlurmCluster) -> None:
    engine = SlurmEngine(slurm.options)
    assert engine.per_job(Resources(cpus=1)) == CPUS_PER_NODE
    assert engine.per_job(Resources(cpus=5)) == 3
    assert engine.per_job(Resources(cpus=1, memory="4000Mi")) == 4
    assert SlurmEngine({**slurm.options, "processes_per_job": "2"}).per_job(Resources()) == 2
    assert set(engine.hosts()) == {machine.ip for machine in slurm.nodes.values()}
    with pytest.raises(EngineError, match="17 CPUs: the largest have 16 CPUs"):
        engine.per_job(Resources(cpus=17))


# --- how jobs end -----------------------------------------------------------------------------------------------------


def test_a_node_that_fails_ends_its_jobs_with_words(slurm: SlurmCluster, run: str) -> None:
    node = next(iter(slurm.nodes))
    engine = SlurmEngine({**slurm.options, "nodelist": node})
    id = start(engine, python(FOREVER), run)
    slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        status = end_of(engine, id)
        assert status.reason.startswith(f"NODE_FAIL on {node}: the node failed")
        assert status.exit_code != 0
        assert engine.find(run) == [], "it is not put into the queue again"
    finally:
        engine.close()
        slurm.wait_for_nodes(3)


def test_too_much_memory_is_told_as_such(engine: SlurmEngine, run: str) -> None:
    id = start(
        engine, python("print('up', flush=True); len(b'x' * (500 << 20))", resources=Resources(memory="64Mi")), run
    )
    status = end_of(engine, id)
    assert status.exit_code == -9
    assert status.reason.startswith("OUT_OF_MEMORY")
    assert "more memory" in status.reason


def test_a_cancel_by_somebody_else_is_told_from_our_own(slurm: SlurmCluster, engine: SlurmEngine, run: str) -> None:
    ours, theirs = start(engine, python(FOREVER), run), start(engine, python(FOREVER), run)
    engine.cancel([ours])
    slurm.run("scancel", theirs)
    assert end_of(engine, ours).reason == "CANCELLED: by its launcher"
    assert "with scancel or by the administrator" in end_of(engine, theirs).reason


@pytest.mark.timing
def test_a_job_that_ignores_polite_signals_ends_at_once(engine: SlurmEngine, run: str) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    id = start(engine, python(code), run)
    begun = time.monotonic()
    engine.cancel([id])
    end_of(engine, id)
    assert (time.monotonic() - begun) / KILL_WAIT_S < 1, "Slurm by itself would have waited KILL_WAIT_S before SIGKILL"


def test_waiting_jobs_say_why_and_each_can_be_cancelled_alone(
    slurm: SlurmCluster, engine: SlurmEngine, run: str
) -> None:
    whole = Resources(cpus=CPUS_PER_NODE - 1)  # the last one is for the job that waits for its time to pass
    running = engine.submit(python(FOREVER, resources=whole), 3, run, "running")
    wait_until(lambda: all("up" in engine.logs(id) for id in running))
    waiting = engine.submit(python(FOREVER, resources=whole, stdin=b"secret"), 3, run, "waiting")
    wait_until(lambda: engine.poll(waiting)[waiting[0]].reason.startswith(("Resources", "Priority")))
    assert "nodes are busy" in engine.poll(waiting)[waiting[0]].reason
    assert engine.find(run) == running + waiting
    engine.cancel([waiting[1]])
    states = engine.poll(waiting)
    assert [states[id].state for id in waiting] == [JobState.PENDING, JobState.ENDED, JobState.PENDING]
    assert states[waiting[1]].reason.startswith("CANCELLED")
    credentials = Path(str(slurm.options["folder"])).glob("*/*/*.stdin")
    assert sorted(path.name for path in credentials) == ["0.stdin", "2.stdin"], "those of the cancelled job are gone"


def test_signals_of_slurm_reach_the_program_itself(slurm: SlurmCluster, engine: SlurmEngine, run: str) -> None:
    code = (
        "import signal, time\n"
        "for number in (10, 15):\n"
        "    signal.signal(number, lambda number, _: print('heard', number, flush=True))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    id = start(engine, python(code), run)
    for number in ("USR1", "TERM"):
        slurm.run("scancel", "--batch", f"--signal={number}", id)
    wait_until(lambda: "heard 10" in engine.logs(id) and "heard 15" in engine.logs(id))


def test_a_notice_before_the_program_listens_does_not_end_it(
    slurm: SlurmCluster, engine: SlurmEngine, run: str
) -> None:
    id = start(engine, python(FOREVER), run)
    slurm.run("scancel", "--batch", "--signal=USR1", id)
    slurm.run("scancel", "--batch", "--signal=TERM", id)  # the next one: when it has ended, the first was delivered
    assert end_of(engine, id).exit_code == -15


def test_a_job_is_never_started_twice(slurm: SlurmCluster, engine: SlurmEngine, run: str) -> None:
    id = start(engine, python(FOREVER, stdin=b"secret"), run)
    with pytest.raises(AssertionError, match="disabled"):
        slurm.run("scontrol", "requeue", id)


def test_a_folder_that_nodes_do_not_share_is_named(slurm: SlurmCluster, run: str) -> None:
    # Each machine has its own /dev/shm, so this one is seen by the launcher only.
    engine = SlurmEngine({**slurm.options, "folder": "/dev/shm/ropewalk-test"})
    try:
        [id] = engine.submit(python("pass", stdin=b"secret"), 1, run, "a")
        ended = end_of(engine, id)
        assert re.match(r"node \S+ cannot open the job's files in the folder /dev/shm/ropewalk-test,", ended.reason)
        assert "set the option folder" in ended.reason and ended.hopeless
    finally:
        _end(engine, run)
        Path("/dev/shm/ropewalk-test").rmdir()


# --- the controller ---------------------------------------------------------------------------------------------------


@pytest.mark.lab  # a cluster of its own
def test_jobs_outlive_a_restart_of_the_controller(own: Callable[[int], SlurmCluster], run: str) -> None:
    cluster = own(1)
    engine = SlurmEngine(cluster.options)
    id = start(engine, python("import time; print('up', flush=True); time.sleep(4); raise SystemExit(3)"), run)
    cluster.stop_controller()
    impatient = SlurmEngine({**cluster.options, "timeout_s": 0.5})
    with pytest.raises(EngineError, match="slurmctld"):
        impatient.poll([id])
    with pytest.raises(EngineError, match="slurmctld"):
        impatient.submit(python("pass"), 1, run, "during")
    cluster.start_controller()
    assert engine.poll([id])[id].state is JobState.RUNNING, "a question is asked again while the controller starts"
    assert end_of(engine, id).exit_code == 3
    _end(engine, run)


_OUTAGE = """
import os, sys
import ropewalk as rw

if __name__ == "__main__":
    with rw.Pool(1) as pool:
        print("first", pool.apply(os.getpid), flush=True)
        sys.stdin.readline()
        print("second", pool.apply(os.getpid), flush=True)
"""


@pytest.mark.lab  # a cluster of its own
def test_a_run_whose_agents_are_gone_outlives_an_outage_of_the_controller(
    own: Callable[[int], SlurmCluster],
) -> None:
    # It ended after 20 s: "no agent could be submitted: sbatch failed with exit code 1: Unable to contact ...".
    cluster = own(1)
    script, output = cluster.folder / "outage.py", cluster.folder / "outage.out"
    script.write_text(_OUTAGE)
    options = json.dumps({**cluster.options, "timeout_s": 2.0})
    environment = {**launcher_environment(cluster), "ROPEWALK_ENGINE": "slurm", "ROPEWALK_ENGINE_OPTIONS": options}
    with open(output, "w") as out:
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": out, "stderr": subprocess.STDOUT, "text": True}
        launcher = cluster.controller.popen([sys.executable, str(script)], env=environment, **streams)
        with launcher:
            try:
                wait_until(lambda: "first" in output.read_text())
                cluster.run("scancel", "--name", cluster.run("squeue", "--noheader", "--format=%j").strip())
                cluster.stop_controller()
                wait_until(lambda: "no agents can be had until the engine answers again" in output.read_text())
                cluster.start_controller()
                assert launcher.stdin
                launcher.stdin.write("\n")
                launcher.stdin.close()
                assert launcher.wait(PATIENCE_S) == 0, output.read_text()
            finally:
                launcher.kill()
    said = output.read_text()
    assert "the engine answers again, after" in said and "second" in said


def test_a_job_that_will_never_start_is_not_waited_for(slurm: SlurmCluster, run: str) -> None:
    engine = SlurmEngine({**slurm.options, "partition": "short", "extra": ["--begin=now+1hour"]})
    [id] = engine.submit(python("pass", time_limit_s=300), 1, run, "a")
    wait_until(lambda: "BeginTime" in engine.poll([id])[id].reason)
    assert not engine.poll([id])[id].hopeless
    slurm.run("scontrol", "update", "PartitionName=short", "MaxTime=1")
    try:
        slurm.run("scontrol", "update", f"JobId={id}", "StartTime=now")
        wait_until(lambda: engine.poll([id])[id].hopeless)
        assert engine.poll([id])[id].reason.startswith("PartitionTimeLimit: its time limit is longer")
    finally:
        slurm.run("scontrol", "update", "PartitionName=short", "MaxTime=10")
        _end(engine, run)


def test_a_job_that_was_taken_although_sbatch_failed_is_not_submitted_twice(
    slurm: SlurmCluster, engine: SlurmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    pretend(tmp_path, "sbatch", f'{slurm.bin}/sbatch "$@"; echo "Socket timed out on send/recv operation" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}:{slurm.environment['PATH']}")
    ids = engine.submit(python(FOREVER), 3, run, "a")
    assert len(ids) == 3
    assert engine.find(run) == ids


def test_credentials_that_another_user_has_put_there_start_no_agent(
    slurm: SlurmCluster, engine: SlurmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    forge = f"for each in {slurm.options['folder']}/ropewalk-{run}/*/0.stdin; do echo forged > $each; done"
    pretend(tmp_path, "sbatch", f'{forge}; exec {slurm.bin}/sbatch "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{slurm.environment['PATH']}")
    [id] = engine.submit(python("print('ran')", stdin=b"secret"), 1, run, "a")
    status = end_of(engine, id)
    assert status.hopeless and "that the launcher did not write" in status.reason
    assert "0.stdin on" in engine.logs(id) and "ran" not in engine.logs(id)


def test_a_slurm_without_json_is_asked_in_another_way(
    slurm: SlurmCluster, engine: SlurmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    no_json = 'case "$*" in *--json*) echo "squeue: unrecognized option \'--json\'" >&2; exit 1;; esac'
    pretend(tmp_path, "squeue", f'{no_json}; exec {slurm.bin}/squeue "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{slurm.environment['PATH']}")
    ids = engine.submit(python("import os; raise SystemExit(int(os.environ['SLURM_ARRAY_TASK_ID']))"), 2, run, "a")
    wait_until(lambda: all(status.state is JobState.ENDED for status in engine.poll(ids).values()))
    assert [status.exit_code for status in engine.poll(ids).values()] == [0, 1]
    id = start(engine, python(FOREVER), run)
    assert engine.find(run) == [id]
    engine.cancel([id])
    assert end_of(engine, id).exit_code in (-9, -15)  # Slurm sends SIGTERM first, which a busy node may deliver alone


def test_without_slurms_commands_errors_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = SlurmEngine({"folder": str(tmp_path / "jobs")})
    for act in (lambda: engine.submit(python("pass"), 1, run, "a"), lambda: engine.poll(["1"]), engine.runs):
        with pytest.raises(EngineError, match=r"no (sinfo|squeue) on the PATH.*login node.*apt install slurm-client"):
            act()
    engine.close()
    finding = next(finding for finding in engine.check() if finding.what == "commands of Slurm")
    assert not finding.ok
    assert "sbatch, squeue, scancel" in finding.detail


def test_what_sbatch_prints_is_no_id_unless_it_looks_like_one(
    slurm: SlurmCluster, engine: SlurmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    pretend(tmp_path, "sbatch", "echo '12; rm -rf /'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{slurm.environment['PATH']}")
    with pytest.raises(EngineError, match="should have printed the id"):
        engine.submit(python("pass"), 1, run, "a")
    engine.cancel(["1 2; reboot", "$(reboot)", "--user=root"])  # no such ids, so nothing is run


def pretend(folder: Path, command: str, script: str) -> None:
    """A program that stands before the real one on the PATH."""
    path = folder / command
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_secrets_are_where_only_the_user_reads_them(
    slurm: SlurmCluster, engine: SlurmEngine, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    secret = "5ec2e7-of-the-run"
    monkeypatch.setenv("LAUNCHER_PASSWORD", secret)
    monkeypatch.setenv("SLURM_JOB_ID", "77")  # as if the launcher were a job itself
    monkeypatch.setenv("SBATCH_EXPORT", "ALL")
    folder = Path(str(slurm.options["folder"]))
    code = (
        "import os, sys\nprint('LAUNCHER_PASSWORD' in os.environ, 'LC_ALL' in os.environ, len(sys.stdin.read()))\n"
        f"print(os.environ['SLURM_JOB_ID'])\n{FOREVER}"
    )
    slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        [id] = engine.submit(python(code, stdin=secret.encode()), 1, run, "a")
        waiting = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
        wait_until(lambda: engine.poll([id])[id].reason.startswith("PartitionDown: the partition is closed"))
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "State=UP")
    assert sorted(waiting.values()) == [0o600, 0o600, 0o700, 0o700]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    wait_until(lambda: "up" in engine.logs(id))
    assert engine.logs(id).splitlines()[:2] == [f"False False {len(secret)}", id], "nothing of the launcher leaks"
    assert [path.name for path in folder.rglob("*.stdin")] == [], "the job removes them as soon as it has them"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*.log")} == {0o600}
    told = slurm.run("scontrol", "show", "job", id) + slurm.run("scontrol", "write", "batch_script", id, "-")
    logs = "".join(path.read_text(errors="replace") for path in (slurm.folder / "log").iterdir())
    assert "FOREVER" not in told and secret not in told + logs + engine.render(python(code, stdin=secret.encode()))


def test_a_second_engine_reads_logs_and_tidies_up(slurm: SlurmCluster, engine: SlurmEngine, run: str) -> None:
    id = start(engine, python(FOREVER), run)
    second = SlurmEngine(slurm.options)
    assert second.logs(id) == "up\n"
    second.close()
    assert second.logs(id) == "up\n", "what still runs keeps its files"
    second.cancel(second.runs()[run])
    assert not list(Path(str(slurm.options["folder"])).glob("*"))


# --- a whole host -----------------------------------------------------------------------------------------------------


@pytest.mark.lab  # a cluster of its own
def test_a_plug_that_is_pulled_ends_the_jobs_of_that_node_only(own: Callable[[int], SlurmCluster], run: str) -> None:
    cluster = own(2)
    engine = SlurmEngine({**cluster.options, "exclusive": True})
    ids = engine.submit(python(FOREVER), 2, run, "a")
    wait_until(lambda: all("up" in engine.logs(id) for id in ids))
    printed = cluster.run("squeue", "--noheader", "--format=%i %N")
    node_of = dict(line.split() for line in printed.splitlines())
    cluster.lab.plug(cluster.nodes[node_of[ids[0]]])
    assert end_of(engine, ids[0]).reason.startswith("NODE_FAIL on n")
    assert engine.poll(ids)[ids[1]].state is JobState.RUNNING
    finding = next(finding for finding in engine.check() if finding.what == "usable nodes")
    assert finding.detail == "1 of 2"
    assert engine.per_job(Resources()) == CPUS_PER_NODE
    _end(engine, run)


def test_check_finds_fault_with_what_is_wrong_only(slurm: SlurmCluster, engine: SlurmEngine) -> None:
    findings = engine.check()
    assert [finding.what for finding in findings if not finding.ok] == []
    wrong = SlurmEngine({**slurm.options, "partition": "nowhere"})
    assert [finding.what for finding in wrong.check() if not finding.ok] == ["partition"]
    assert subprocess.run(["sinfo"], capture_output=True).returncode == 0


def test_a_job_whose_time_has_passed_is_told_first_and_then_ended(slurm: SlurmCluster, timed_job: TimedJob) -> None:
    status = end_of(timed_job.engine, timed_job.id, 50)
    assert "heard 10" in timed_job.engine.logs(timed_job.id), "the notice of --signal=B:USR1"
    assert "heard 15" in timed_job.engine.logs(timed_job.id)
    assert status.exit_code == -9
    assert status.reason.startswith("TIMEOUT on n")
    assert "time limit" in status.reason
