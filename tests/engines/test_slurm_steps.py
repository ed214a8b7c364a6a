"""Inside an allocation agents are steps on its nodes: the public suite on a real cluster, and what is special there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import pytest

from ropewalk.engines.engine import Engine, JobSpec, JobState, JobStatus
from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.engines.slurm import SlurmEngine
from ropewalk.engines.slurm_steps import SlurmSteps, slurm_engine
from ropewalk.errors import EngineError, SettingsError
from ropewalk.testing.engine_conformance import EngineConformance
from tests.lab.slurm import SlurmCluster
from tests.patience import wait_until

FOREVER = "import os, time; print('up on', os.environ['SLURMD_NODENAME'], flush=True); time.sleep(600)"
RUN = "57e95a11"


def salloc(cluster: SlurmCluster, *flags: str) -> str:
    argv = ["/usr/bin/salloc", "--no-shell", "--job-name=mine", *flags]
    done = cluster.controller.run(argv, env=cluster.inner_environment)
    match = re.search(r"Granted job allocation (\d+)", done.stderr)
    assert match, done.stderr
    return match[1]


@pytest.fixture(scope="class")
def whole(slurm_cluster: SlurmCluster) -> Iterator[str]:
    """An allocation of all nodes, for the suite."""
    id = salloc(slurm_cluster, "--nodes=3", "--exclusive")
    yield id
    slurm_cluster.run("scancel", id)


def steps(cluster: SlurmCluster) -> dict[str, str]:
    """The ids of all steps that run, by name."""
    printed = cluster.run("squeue", "--steps", "--noheader", "--format=%j %i")
    return dict(line.split() for line in printed.splitlines())


@pytest.mark.usefixtures("_inside")
class TestSlurmSteps(EngineConformance):
    engine_name = "slurm"
    cluster: SlurmCluster

    @pytest.fixture
    def _inside(self, slurm: SlurmCluster, whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = slurm
        monkeypatch.setenv("SLURM_JOB_ID", whole)

    def engine_options(self) -> Mapping[str, object]:
        return self.cluster.options

    def make_engine(self) -> Engine:
        engine = super().make_engine()
        assert isinstance(engine, SlurmSteps)
        return engine

    def lose(self, engine: Engine, id: str) -> None:
        self.cluster.run("scancel", "--signal=KILL", steps(self.cluster)[f"ropewalk-{id}"])

    def leftovers(self) -> list[str]:
        return [str(path) for path in Path(str(self.cluster.options["folder"])).glob("step-*")]


@pytest.fixture
def two(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An allocation of four CPUs on each of two nodes, that this process is inside of."""
    id = salloc(slurm, "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=2000M")
    monkeypatch.setenv("SLURM_JOB_ID", id)
    yield id
    slurm.run("scancel", id)
    wait_until(lambda: RUN not in " ".join(steps(slurm)))


@pytest.fixture
def engine(slurm: SlurmCluster, two: str) -> Iterator[SlurmSteps]:
    made = slurm_engine(slurm.options)
    assert isinstance(made, SlurmSteps) and made.allocation == two
    yield made
    made.cancel(made.find(RUN))
    made.close()


@contextlib.contextmanager
def step_of_user(cluster: SlurmCluster, allocation: str, name: str, *flags: str) -> Generator[None]:
    """Something else that runs in the allocation."""
    argv = ["srun", f"--jobid={allocation}", f"--job-name={name}", "--exact", *flags, "sleep", "600"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: name in steps(cluster))
            yield
        finally:
            process.terminate()


def python(code: str, **facts: object) -> JobSpec:
    return JobSpec(command=[sys.executable, "-c", code], **facts)  # pyright: ignore[reportArgumentType]


def start(engine: Engine, spec: JobSpec, count: int, request: str = "a") -> list[str]:
    """Agents that are up."""
    ids = engine.submit(spec, count, RUN, request)
    wait_until(lambda: all("up" in engine.logs(id) for id in ids))
    return ids


def end_of(engine: Engine, id: str) -> JobStatus:
    wait_until(lambda: engine.poll([id])[id].state is JobState.ENDED)
    return engine.poll([id])[id]


def nodes_of(cluster: SlurmCluster, allocation: str) -> set[str]:
    return set(cluster.run("scontrol", "show", "hostnames", allocated(cluster, allocation)).split())


def allocated(cluster: SlurmCluster, allocation: str) -> str:
    return cluster.run("squeue", "--noheader", f"--jobs={allocation}", "--format=%N").strip()


# --- where agents go --------------------------------------------------------------------------------------------------


def test_steps_are_for_launchers_inside_of_an_allocation_of_their_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert isinstance(slurm_engine(), SlurmEngine)
    monkeypatch.setenv("SLURM_JOB_ID", "8812")
    assert isinstance(slurm_engine(), SlurmSteps)
    assert isinstance(slurm_engine({"inside": "submit"}), SlurmEngine)
    with pytest.raises(SettingsError, match="inside must be one of 'auto', 'submit', not 'yes'"):
        slurm_engine({"inside": "yes"})
    # `ropewalk submit` made this job for its launcher; agents would not fit into it.
    monkeypatch.setenv("ROPEWALK_RUN_ID", RUN)
    assert isinstance(slurm_engine(), SlurmEngine)


def test_agents_run_on_the_nodes_of_the_allocation_and_spread(
    slurm: SlurmCluster, two: str, engine: SlurmSteps
) -> None:
    nodes = nodes_of(slurm, two)
    assert len(nodes) == 2
    assert (engine.per_job(Resources()), engine.per_job(Resources(memory="1000Mi"))) == (4, 2)
    assert engine.places().rooms == dict.fromkeys(nodes, HostCapacity(4, 0, 2000 << 20))
    assert set(engine.hosts()) == {slurm.nodes[name].ip for name in nodes}
    ids = [start(engine, python(FOREVER, resources=Resources(cpus=2)), 1, request)[0] for request in "abcd"]
    logs = [engine.logs(id).split()[2] for id in ids]
    assert set(logs[:2]) == set(logs[2:]) == nodes, "a node gets its second agent when each has one"
    assert slurm.run("squeue", "--noheader", "--format=%i").split() == [two], "no job was submitted"


def test_an_allocation_that_is_too_small_says_so_by_name(two: str, engine: SlurmSteps) -> None:
    words = f"allocation {two} .2 nodes with up to 4 CPUs, 2000 MiB of memory, no GPU. is too small"
    for count, resources in ((3, Resources(cpus=4)), (1, Resources(cpus=5)), (1, Resources(gpus=1)), (9, Resources())):
        with pytest.raises(EngineError, match=words):
            engine.submit(python("pass", resources=resources), count, RUN, "a")
    with pytest.raises(EngineError, match=f"no node of the allocation {two} can hold a process of 5 CPUs: .* 4 CPUs"):
        engine.per_job(Resources(cpus=5))
    start(engine, python(FOREVER, resources=Resources(cpus=4)), 1, "first")
    with pytest.raises(EngineError, match="1 run there already, and it has room for 1 agents of 4 CPUs, and 2 were"):
        engine.submit(python("pass", resources=Resources(cpus=4)), 2, RUN, "second")
    assert len(engine.find(RUN)) == 1


def test_agents_wait_with_words_while_other_steps_hold_the_nodes(
    slurm: SlurmCluster, two: str, engine: SlurmSteps
) -> None:
    with step_of_user(slurm, two, "other", "--ntasks-per-node=1", "--nodes=2", "--cpus-per-task=4"):
        ids = engine.submit(python(FOREVER), 2, RUN, "a")
        wait_until(lambda: "other steps of the allocation hold" in engine.poll(ids)[ids[0]].reason)
        assert {status.state for status in engine.poll(ids).values()} == {JobState.PENDING}
        assert engine.find(RUN) == ids
        engine.cancel(ids[:1])
        assert end_of(engine, ids[0]).reason == "CANCELLED: by its launcher"
        slurm.run("scancel", steps(slurm)["other"])
    wait_until(lambda: "up" in engine.logs(ids[1]))
    assert len(steps(slurm)) == 1


def test_a_launcher_in_a_step_lets_its_agents_overlap_with_it(
    slurm: SlurmCluster, two: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with step_of_user(slurm, two, "launcher", "--ntasks-per-node=1", "--nodes=2", "--cpus-per-task=4"):
        engine = slurm_engine(slurm.options)
        engine.cancel(start(engine, python(FOREVER, resources=Resources(cpus=4)), 2))
        engine.close()


# --- how they end -----------------------------------------------------------------------------------------------------


def test_a_cancel_touches_nothing_else_of_the_allocation(slurm: SlurmCluster, two: str, engine: SlurmSteps) -> None:
    with step_of_user(slurm, two, "other", "--nodes=1", "--ntasks=1"):
        first, second = start(engine, python(FOREVER), 2)
        engine.cancel([first])
        assert end_of(engine, first) == JobStatus(JobState.ENDED, -9, "CANCELLED: by its launcher")
        assert set(steps(slurm)) == {"other", f"ropewalk-{second}"}
        engine.cancel([two, f"{two}.0", "$(reboot)"])  # a job that is not ours, and no ids at all
        engine.cancel(engine.find(RUN))
        assert set(steps(slurm)) == {"other"}
        assert allocated(slurm, two)
        slurm.run("scancel", steps(slurm)["other"])


def test_the_end_of_the_allocation_is_announced_and_told(slurm: SlurmCluster, two: str, engine: SlurmSteps) -> None:
    code = f"import signal; signal.signal(15, lambda *_: print('heard', flush=True))\n{FOREVER}"
    polite, over = start(engine, python(code), 2)
    slurm.run("scancel", two)
    for id in (polite, over):
        status = end_of(engine, id)
        assert status.exit_code != 0
        assert f"the allocation {two} is over" in status.reason and "CANCELLED" in status.reason, status
        assert "heard" in engine.logs(id)
    with pytest.raises(EngineError, match=f"the allocation {two} is over.*start the launcher in a new one"):
        engine.submit(python("pass"), 1, RUN, "late")
    assert [finding.what for finding in engine.check() if not finding.ok] == ["allocation", "partition"]


def test_what_slurm_says_of_an_end_is_told(engine: SlurmSteps) -> None:
    code = "print('up', flush=True); len(b'x' * (500 << 20))"
    [large] = start(engine, python(code, resources=Resources(memory="64Mi")), 1, "large")
    [odd] = engine.submit(python("raise SystemExit(137)"), 1, RUN, "odd")
    status = end_of(engine, large)
    assert status.exit_code == -9 and status.reason.startswith("OUT_OF_MEMORY on n"), status
    assert end_of(engine, odd).exit_code == 137, "which a shell could not tell from a signal"


def test_a_node_that_does_not_see_the_launchers_folder_is_named_with_it(two: str) -> None:
    # Each machine has its own /dev/shm, so this one is seen by the launcher only.
    engine = slurm_engine({"folder": "/dev/shm/ropewalk-steps"})
    assert isinstance(engine, SlurmSteps) and engine.allocation == two
    try:
        [id] = engine.submit(python("pass", stdin=b"secret"), 1, RUN, "unseen")
        status = end_of(engine, id)
        assert re.match(r"node n\S+ cannot open the job's files in the folder /dev/shm/ropewalk-steps,", status.reason)
        assert status.hopeless, "others would not find theirs"
    finally:
        engine.close()
        shutil.rmtree("/dev/shm/ropewalk-steps")


def test_a_script_that_another_user_has_put_there_is_not_run(
    slurm: SlurmCluster, engine: SlurmSteps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge = f"for each in {slurm.options['folder']}/step-{RUN}/*/job.sh; do echo 'echo forged' > $each; done"
    (tmp_path / "srun").write_text(f'#!/bin/sh\n{forge}; exec {slurm.bin}/srun "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{slurm.environment['PATH']}")
    [id] = engine.submit(python("pass", stdin=b"secret"), 1, RUN, "a")
    status = end_of(engine, id)
    assert status.hopeless and "that the launcher did not write" in status.reason and "forged" not in engine.logs(id)


def test_a_step_whose_srun_is_killed_is_still_ended_by_cancel(slurm: SlurmCluster, engine: SlurmSteps) -> None:
    [id] = start(engine, python(FOREVER), 1)
    engine._agents[id].client.kill()
    engine._agents[id].client.wait()
    assert engine.poll([id])[id].state is not JobState.LOST
    engine.cancel([id])
    wait_until(lambda: f"ropewalk-{id}" not in steps(slurm))
    assert end_of(engine, id).exit_code != 0


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_secrets_are_where_only_the_user_reads_them(
    slurm: SlurmCluster, two: str, engine: SlurmSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "5ec2e7-of-the-run"
    monkeypatch.setenv("LAUNCHER_PASSWORD", secret)
    code = f"import os, sys\nprint('LAUNCHER_PASSWORD' in os.environ, len(sys.stdin.read()))\n{FOREVER}"
    [id] = start(engine, python(code, stdin=secret.encode()), 1)
    assert engine.logs(id).startswith(f"False {len(secret)}\n"), "nothing of the launcher leaks"
    folder = Path(str(slurm.options["folder"]))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("step-*/*/*")}
    assert modes == {"job.sh": 0o600, "0.log": 0o600, "0.srun": 0o600}, "the step removes them as soon as it has them"
    told = slurm.run("scontrol", "show", "step", two) + slurm.run("scontrol", "show", "job", two)
    said = subprocess.run(["ps", "axeww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    ours = [line for line in said.splitlines() if RUN in line]
    logs = "".join(path.read_text(errors="replace") for path in (slurm.folder / "log").iterdir())
    files = "".join(path.read_text() for path in folder.rglob("step-*/*/*"))
    assert f"ropewalk-{id}" in told and ours
    assert secret not in told + logs + files + "".join(ours) + engine.render(python(code, stdin=secret.encode()))


# --- a whole run ------------------------------------------------------------------------------------------------------

_POOL = """
import os
import ropewalk as rw

def where(number):
    return number * number, os.environ["SLURMD_NODENAME"], os.environ["SLURM_JOB_ID"]

if __name__ == "__main__":
    with rw.Pool() as pool:
        nodes = set()
        while len(nodes) < 2:  # until both agents are up
            answers, where_they_ran, jobs = zip(*pool.map(where, range(60)))
            nodes |= set(where_they_ran)
    print(sum(answers), sorted(nodes), set(jobs))
"""


_FOR_EVER = """
import os, time
import ropewalk as rw

def wait(number):
    print("at work", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    with rw.Pool() as pool:
        pool.map(wait, range(4))
"""


def test_a_run_whose_allocation_ends_ends_with_words(slurm: SlurmCluster, two: str) -> None:
    environment = {**launcher_environment(slurm), "SLURM_JOB_ID": two}
    (slurm.folder / "forever.py").write_text(_FOR_EVER)
    argv = [sys.executable, "-m", "ropewalk", "run", str(slurm.folder / "forever.py"), "--workers", "4"]
    with open(slurm.folder / "forever.out", "w+") as out:
        with slurm.controller.popen(argv, env=environment, stdout=out, stderr=subprocess.STDOUT) as launcher:
            try:
                wait_until(lambda: (slurm.folder / "forever.out").read_text().count("at work") == 4)
                slurm.run("scancel", two)
                assert launcher.wait(120) != 0
            finally:
                launcher.kill()
    said = (slurm.folder / "forever.out").read_text()
    assert f"the allocation {two} is over" in said, said


def launcher_environment(cluster: SlurmCluster) -> dict[str, str]:
    """For a launcher in a machine of the lab, with the commands of Slurm as they are there."""
    path = os.environ["PATH"].replace(f"{cluster.bin}{os.pathsep}", "")
    options = json.dumps(cluster.options)
    return {**cluster.inner_environment, "PATH": path, "ROPEWALK_ENGINE_OPTIONS": options}


def test_a_batch_script_runs_a_pool_on_its_nodes(slurm: SlurmCluster) -> None:
    folder = slurm.folder / "batch"
    folder.mkdir(exist_ok=True)
    (folder / "squares.py").write_text(_POOL)
    (folder / "job").write_text(
        f"#!/bin/bash\ncd {folder} && exec {shlex.quote(sys.executable)} -m ropewalk run squares.py --workers 6\n"
    )
    flags = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=3", "--wait", f"--output={folder}/out"]
    argv = ["/usr/bin/sbatch", "--parsable", *flags, str(folder / "job")]
    done = slurm.controller.run(argv, env=launcher_environment(slurm), check=False, timeout=200)
    said = (folder / "out").read_text()
    assert done.returncode == 0, said
    id = done.stdout.strip()
    match = re.search(r"^(\d+) \[(.*)\] {'(\d+)'}$", said, re.MULTILINE)
    assert match, said
    assert (int(match[1]), len(match[2].split(", ")), match[3]) == (sum(n * n for n in range(60)), 2, id), said
    wait_until(lambda: not steps(slurm), what="Slurm forgets the step of the batch script")


# --- an allocation with more CPUs on one node than on the other -------------------------------------------------------

_CPUS = """
import collections, os
import ropewalk as rw

def seen(number):
    return os.getpid(), os.environ["SLURMD_NODENAME"], int(os.environ["SLURM_CPUS_PER_TASK"])

if __name__ == "__main__":
    with rw.Pool() as pool:
        pool.wait_until_ready(120)
        hosts = collections.Counter(worker.host for worker in pool.status().workers)
        cpus = {node: num for _, node, num in pool.map(seen, range(200), chunksize=1)}
    print(sorted(hosts.values()), sorted(cpus.values()))
"""


@pytest.fixture
def uneven(slurm: SlurmCluster) -> Iterator[str]:
    """Four CPUs on two nodes, as Slurm deals them out by default: three and one."""
    id = salloc(slurm, "--nodes=2", "--ntasks=4")
    yield id
    slurm.run("scancel", id)


def run_inside(cluster: SlurmCluster, allocation: str, *argv: str) -> subprocess.CompletedProcess[str]:
    script = cluster.folder / "cpus.py"
    script.write_text(_CPUS)
    environment = {**launcher_environment(cluster), "SLURM_JOB_ID": allocation}
    command = [sys.executable, "-m", "ropewalk", "run", str(script), *argv]
    return cluster.controller.run(command, env=environment, check=False, timeout=200)


def test_each_node_gets_as_many_processes_as_it_has_cpus(slurm: SlurmCluster, uneven: str) -> None:
    done = run_inside(slurm, uneven, "--workers", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1, 3] [1, 3]\n", "workers and CPUs of each node"
    assert not steps(slurm)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "6"], "is too small for 6 processes of 1 CPU: it has room for 4."),
        (["--workers", "4", "--cpus", "2"], "is too small for 4 processes of 2 CPUs: it has room for 1."),
        (["--workers", "1", "--cpus", "4"], "can hold a process of 4 CPUs: it has at most 3 CPUs"),
    ],
)
def test_more_than_the_allocation_has_is_refused_by_name(
    slurm: SlurmCluster, uneven: str, options: list[str], words: str
) -> None:
    for dry in ([], ["--dry-run"]):
        done = run_inside(slurm, uneven, *options, *dry)
        assert done.returncode != 0
        assert f"the allocation {uneven}" in done.stderr and words in done.stderr, done.stderr


def test_a_dry_run_names_the_node_of_each_step(slurm: SlurmCluster, uneven: str) -> None:
    done = run_inside(slurm, uneven, "--workers", "4", "--dry-run")
    assert done.returncode == 0, done.stderr
    first, second = sorted(nodes_of(slurm, uneven))
    assert f"# 2 jobs with room for 3 on {first}, 1 on {second}" in done.stdout
    assert f"--nodelist={first} --nodes=1 --ntasks=1 --cpus-per-task=3" in done.stdout
