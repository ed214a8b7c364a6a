"""The engines of PBS and LSF pass the public suite with stand-ins for the commands, and check what they need."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine, JobSpec, JobState
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError, SettingsError
from ropewalk.testing.engine_conformance import EngineConformance
from tests.engines.pretend_batch import CPUS, install, serving, wait_for_supervisors
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the server of the pretended clusters' commands."""
    with serving() as address:
        yield address


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> Iterator[Path]:
    """The folder that the hosts of the pretended cluster share; its commands are on the PATH."""
    install(tmp_path / "bin", tmp_path / "state", server)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    yield tmp_path / "shared"
    wait_for_supervisors(tmp_path / "state")


class _Pretended:
    """What the suite is told of both pretended clusters."""

    num_jobs = 8
    shared: Path

    @pytest.fixture(autouse=True)
    def _cluster(self, shared: Path) -> None:
        self.shared = shared

    def engine_options(self) -> Mapping[str, object]:
        return {"folder": str(self.shared)}

    def leftovers(self) -> list[str]:
        return [str(path) for path in self.shared.glob("*")]


class TestPbs(_Pretended, EngineConformance):
    engine_name = "pbs"

    def lose(self, engine: Engine, id: str) -> None:
        subprocess.run(["qsig", "-s", "SIGKILL", id], check=True)


#: What `QueueEngine` does for both alike, and TestPbs shows of it.
_ALIKE = (
    "test_a_job_runs_its_command_and_its_output_is_kept",
    "test_stdin_is_handed_over_whole_and_ends",
    "test_a_job_that_does_not_read_its_stdin_holds_up_nobody",
    "test_the_environment_is_set_and_names_the_run",
    "test_submit_is_idempotent",
    "test_a_command_that_does_not_exist_is_an_error",
    "test_logs_are_text_of_limited_size_whatever_a_job_prints",
    "test_jobs_of_a_killed_launcher_end_or_are_found",
    "test_close_may_be_repeated_and_ends_no_job",
    "test_no_secret_can_be_read_by_others",
    "test_nothing_of_the_engine_is_left_open",
    "test_ids_are_unique_for_as_long_as_the_engine_lives",
)


class TestLsf(_Pretended, EngineConformance):
    engine_name = "lsf"

    def lose(self, engine: Engine, id: str) -> None:
        subprocess.run(["bkill", "-s", "KILL", id], check=True)


def _in_soak(test: Callable[[EngineConformance], None]) -> Callable[[EngineConformance], None]:
    @pytest.mark.soak
    @functools.wraps(test)
    def run(self: EngineConformance) -> None:
        test(self)

    return run


for _name in _ALIKE:
    setattr(TestLsf, _name, _in_soak(getattr(EngineConformance, _name)))


@pytest.mark.parametrize("name", ["pbs", "lsf"])
def test_a_refusal_of_the_queue_says_which_option_chooses_it_and_leaves_no_files(name: str, shared: Path) -> None:
    engine = make_engine(name, {"folder": str(shared), "queue": "nosuch"})
    with pytest.raises(EngineError, match=r"refused the job: .*[Qq]ueue.*option queue"):
        engine.submit(JobSpec(["true"]), 1, "run", "a")
    assert list(shared.glob("*")) == []


@pytest.mark.parametrize("name", ["pbs", "lsf"])
def test_a_job_that_no_host_can_hold_is_refused_before_it_is_submitted(name: str, shared: Path) -> None:
    engine = make_engine(name, {"folder": str(shared)})
    too_many = JobSpec(["true"], resources=Resources(cpus=CPUS + 1))
    with pytest.raises(EngineError, match=f"can hold a job of {CPUS + 1} CPUs: the largest have {CPUS} CPUs"):
        engine.submit(too_many, 1, "run", "a")
    assert engine.find("run") == []
    assert engine.per_job(Resources()) == CPUS
    assert make_engine(name, {"processes_per_job": 3}).per_job(Resources(cpus=CPUS + 1)) == 3


@pytest.mark.parametrize(("name", "variable"), [("pbs", "PBS_ENVIRONMENT"), ("lsf", "LSB_JOBINDEX")])
def test_the_workers_of_a_pool_are_in_jobs(name: str, variable: str, shared: Path) -> None:
    options = {"folder": str(shared)}
    with rw.Session(engine=name, engine_options=options, hosts=1) as session, rw.Pool(1, session=session) as pool:
        assert pool.apply(os.getenv, (variable,)) is not None
    assert list(shared.glob("*")) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"setup": "exit 3"}, "the option setup of the engine pbs ended with exit code 3 at: exit 3"),
        ({"python": "/no/such/python"}, "There is no Python at /no/such/python .* set the option `python`"),
    ],
)
def test_a_job_whose_like_would_fail_too_ends_the_run(options: dict[str, str], said: str, shared: Path) -> None:
    """With such a setup, eight jobs failed in turn; without Python, the shell's words were all that was said."""
    options = {"folder": str(shared), **options}
    with rw.Session(engine="pbs", engine_options=options, hosts=1) as session, rw.Pool(1, session=session) as pool:
        with pytest.raises(rw.StartFailed, match="no agent could join this run") as failed:
            pool.apply(os.getpid)
    assert re.search(said, str(failed.value))


@pytest.mark.parametrize(("name", "first"), [("pbs", "qsub"), ("lsf", "bsub")])
def test_missing_commands_are_named_by_the_check(
    name: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(name, {"folder": str(tmp_path / "shared")})
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = engine.check()[0]
    assert not finding.ok
    assert first in finding.detail and "login node" in finding.detail
    with pytest.raises(EngineError, match=r"there is no \w+ on the PATH.*processes_per_job"):
        engine.per_job(Resources())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("pbs", {"extra": ["-J", "0-3"]}, "extra must not hold -J: the engine sets this flag of qsub itself"),
        ("pbs", {"time": "1 day"}, "time is written seconds"),
        ("lsf", {"extra": ["-K"]}, "extra must not hold -K: the engine sets this flag of bsub itself"),
        ("lsf", {"time": "1:00:00"}, "time is written minutes"),
        ("lsf", {"setup": ["a\nb"]}, "control characters"),
        ("pbs", {"processes_per_job": 0}, "above 0"),
    ],
)
def test_options_that_would_break_the_engine_are_refused(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make_engine(name, options)


def _in_front(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Put scripts before the commands of the same names on the PATH."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_a_site_may_print_more_than_the_id_of_a_job(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs were submitted, and yet it was an error, so that they ran on without anybody who knew of them."""
    _in_front(tmp_path / "site", monkeypatch, qsub=f'echo "Your balance: 7 h"; exec {tmp_path}/bin/qsub "$@"')
    engine = make_engine("pbs", {"folder": str(shared)})
    ids = engine.submit(JobSpec(["sleep", "600"]), 2, "run", "a")
    assert len(ids) == 2 and engine.find("run") == ids
    engine.cancel(ids)
    engine.close()


def test_a_user_may_have_more_jobs_than_a_command_has_room_for_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of PBS has the jobs of weeks: "Argument list too long" was all that the engine said to anything."""
    ids = [f"{number}.a-server-with-a-long-name.{'x' * 80}" for number in range(80_000)]
    (tmp_path / "ids").write_text("\n".join(ids))
    qstat = f"""shift 5; echo $# >> {tmp_path}/asked; echo '{{"Jobs": {{}}}}'"""
    _in_front(tmp_path / "site", monkeypatch, qselect=f"cat {tmp_path}/ids", qstat=qstat)
    assert make_engine("pbs", {"folder": str(tmp_path / "shared")}).runs() == {}
    assert sum(map(int, (tmp_path / "asked").read_text().split())) == len(ids)


@pytest.mark.parametrize("name", ["pbs", "lsf"])
def test_a_job_whose_node_does_not_see_the_folder_says_so(
    name: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot write to its log there either: exit code 78 was all that was known of it."""
    submit = {"pbs": "qsub", "lsf": "bsub"}[name]
    script = f'rm -r {shared}/ropewalk-run; exec {tmp_path}/bin/{submit} "$@"'
    _in_front(tmp_path / "site", monkeypatch, **{submit: script})
    engine = make_engine(name, {"folder": str(shared)})
    [id] = engine.submit(JobSpec(["true"], stdin=b"secret"), 1, "run", "a")
    deadline = time.monotonic() + PATIENCE_S
    while (status := engine.poll([id])[id]).state is not JobState.ENDED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert f"its node cannot open the job's files in the folder {shared}" in status.reason
    assert f"set the option folder of the engine {name}" in status.reason and status.exit_code == 78
    engine.close()
