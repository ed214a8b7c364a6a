"""`ropewalk submit`: a script goes on without its terminal, and is found again by its id."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from ropewalk import settings
from ropewalk.cli import submissions
from ropewalk.cli.submissions import RunSpec
from ropewalk.processes.code_bundle import find_project, make_bundle
from tests.cli.command import environment, ropewalk
from tests.cli.pretend_cluster import PretendCluster, installed
from tests.patience import PATIENCE_S

#: Of the submitted scripts: words mean programs too, and those of others may run on this machine.
NAME = "script-of-a-test"

SQUARES = """
import sys
import ropewalk as rw
def square(x): return x * x
if __name__ == "__main__":
    with rw.Pool(2) as pool:
        print(sum(pool.map(square, range(10))), sys.argv[1:], flush=True)
    sys.exit(3)
"""
WAITS = """
import time
print("up", flush=True)
try:
    time.sleep(60)
finally:
    print("cleaned up", flush=True)
"""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A state folder of the test's own; what is still running at the end is killed."""
    yield {"XDG_STATE_HOME": str(tmp_path / "state")}
    for file in tmp_path.glob("state/ropewalk/runs/*/process.json"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(json.loads(file.read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    yield installed(tmp_path)
    for file in tmp_path.glob("queue/*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)


def call(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return ropewalk(*arguments, folder=Path(), **changes)


def submit(folder: Path, source: str, *arguments: str, **changes: str) -> str:
    """Submit a script; returns the id of its run."""
    (folder / f"{NAME}.py").write_text(source)
    done = ropewalk("submit", f"{NAME}.py", *arguments, folder=folder, **changes)
    assert done.returncode == 0, done.stderr
    assert f"ropewalk attach {done.stdout.strip()}" in done.stderr
    return done.stdout.strip()


def states(**changes: str) -> dict[str, dict[str, Any]]:
    return {run["id"]: run for run in json.loads(call("ps", "--all", "--json", **changes).stdout)["submitted"]}


def wait_for(words: str, run: str, **changes: str) -> None:
    due = time.monotonic() + PATIENCE_S
    while words not in (said := call("logs", run, **changes).stdout):
        assert time.monotonic() < due, said
        time.sleep(0.1)


def test_a_submitted_script_runs_by_itself_and_attach_takes_its_output_and_exit_code(
    tmp_path: Path, state: dict[str, str]
) -> None:
    run = submit(tmp_path, SQUARES, "--workers", "2", "--", "--seed", "7", **state)
    assert run.startswith(f"{NAME}-")
    attached = call("attach", run, **state)
    assert attached.stdout == "285 ['--seed', '7']\n"
    assert attached.returncode == 3
    assert "ended with exit code 3" in attached.stderr
    as_json = call("attach", run, "--json", **state)
    *lines, end = map(json.loads, as_json.stdout.splitlines())
    assert lines == [{"run": run, "line": "285 ['--seed', '7']"}] and as_json.returncode == 3
    assert (end["id"], end["state"], end["exit_code"], as_json.stderr) == (run, "ended", 3, "")
    assert (states(**state)[run]["state"], states(**state)[run]["exit_code"]) == ("ended", 3)
    shown = call("ps", **state).stdout
    assert run not in shown and "1 submitted run has ended: see ropewalk ps --all" in shown
    assert "--all" not in call("ps", "--all", **state).stdout
    assert f"{run} ended with exit code 3" in call("ps", run[:-2], **state).stdout, "it was named"
    assert call("logs", run[:-2], "-n", "1", **state).stdout == attached.stdout


def test_it_goes_on_when_its_terminal_and_those_who_follow_it_leave(tmp_path: Path, state: dict[str, str]) -> None:
    run = submit(tmp_path, WAITS, **state)
    following = subprocess.Popen(
        [sys.executable, "-m", "ropewalk", "attach", run],
        env=environment(**state), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert following.stdout and following.stdout.readline() == "up\n"
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=120)
    assert following.returncode == 130 and f"{run} goes on" in said
    assert states(**state)[run]["state"] == "running"
    assert f"submitted {run} running, local" in call("ps", **state).stdout
    stopped = call("stop", run, **state)
    assert stopped.returncode == 0 and f"{run} ended with exit code 143" in stopped.stdout
    assert call("logs", run, **state).stdout.startswith("up\n")
    assert "cleaned up" in call("logs", run, **state).stdout
    assert call("stop", run, **state).returncode == 0


def test_ranks_of_a_submitted_script_fail_and_restart_as_those_of_run(tmp_path: Path, state: dict[str, str]) -> None:
    source = "import os, sys\nprint(os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT'])\nsys.exit(5)\n"
    run = submit(tmp_path, source, "--ranks", "2", "--max-restarts", "1", **state)
    attached = call("attach", run, **state)
    assert attached.returncode == 5, attached.stdout
    shown = {line.partition("] ")[2] for line in attached.stdout.splitlines() if line.startswith("[")}
    assert {"0 1", "1 1"} & shown and {"0 0", "1 0"} & shown, attached.stdout


def test_a_script_can_be_interrupted_although_it_was_submitted_in_the_background(
    tmp_path: Path, state: dict[str, str]
) -> None:
    source = "import signal\nprint(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, signal.getsignal(signal.SIGHUP))"
    (tmp_path / f"{NAME}.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "submit", f"{NAME}.py"],
        cwd=tmp_path, env=environment(**state), capture_output=True, text=True, check=True,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)],
    )  # fmt: skip
    assert call("attach", done.stdout.strip(), **state).stdout == "False 0\n"


def test_one_that_does_not_stop_is_killed_after_the_grace(tmp_path: Path, state: dict[str, str]) -> None:
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    run = submit(tmp_path, stubborn, **state)
    wait_for("up", run, **state)
    stopped = call("stop", run, "--grace", "0.3", "--json", **state)
    ended = json.loads(stopped.stdout)  # it was called lost, and its process was said not to have told how it ended
    assert (ended["state"], ended["exit_code"]) == ("ended", 128 + signal.SIGKILL)
    assert ended["reason"] == "it was killed, as it had not ended 0.3 s after it was asked to"


def test_a_run_that_is_killed_is_told_as_such(tmp_path: Path, state: dict[str, str]) -> None:
    run = submit(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", **state)
    attached = call("attach", run, **state)
    assert attached.returncode == 137
    lost = submit(tmp_path, WAITS, **state)
    wait_for("up", lost, **state)
    (facts,) = (tmp_path / "state/ropewalk/runs").glob(f"{lost}/process.json")
    process = psutil.Process(json.loads(facts.read_text())["pid"])
    os.killpg(process.pid, signal.SIGKILL)
    attached = call("attach", lost, **state)
    assert attached.returncode == 1 and "lost" in attached.stderr


def test_a_launcher_whose_parent_is_killed_goes_on_and_is_still_known(tmp_path: Path, state: dict[str, str]) -> None:
    run = submit(tmp_path, WAITS, **state)
    wait_for("up", run, **state)
    (facts,) = (tmp_path / "state/ropewalk/runs").glob(f"{run}/process.json")
    os.kill(json.loads(facts.read_text())["pid"], signal.SIGKILL)
    assert states(**state)[run]["state"] == "running"
    stopped = call("stop", run, **state)
    assert f"{run} lost" in stopped.stdout and "did not say how it ended" in stopped.stdout
    assert "cleaned up" in call("logs", run, **state).stdout


def test_a_launcher_is_ended_after_its_parent_that_was_ending_when_the_stop_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stop reached the parent alone, whose kill was under way, and waited 30 s for the launcher."""
    both = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    ends = [*(psutil.Process(each.pid) for each in both), None]
    monkeypatch.setattr(submissions, "process_of", lambda _run: ends.pop(0))
    try:
        submissions._end_process(None, PATIENCE_S)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert not any(psutil.pid_exists(each.pid) for each in both)
    finally:
        for each in both:
            each.kill()
            each.wait()


def test_what_is_remembered_is_for_this_user_alone(tmp_path: Path, state: dict[str, str]) -> None:
    before = os.umask(0)
    try:
        run = submit(tmp_path, "print('done')", **state)
    finally:
        os.umask(before)
    assert call("attach", run, **state).returncode == 0
    folder = tmp_path / "state/ropewalk/runs" / run
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(["run.json", "process.json", "launcher.json", "output", "ended.json"], 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_mistakes_show_before_anything_is_submitted(tmp_path: Path, state: dict[str, str]) -> None:
    (tmp_path / "broken.py").write_text("def:\n")
    for arguments, words in [
        (["missing.py"], "there is no file missing.py"),
        ([], "name a file to run, or a module with -m"),
        (["broken.py", "--engine", "locl"], "did you mean 'local'?"),
        (["broken.py", "--seed", "7"], "ropewalk submit FILE -- --seed"),
    ]:
        done = ropewalk("submit", *arguments, folder=tmp_path, **state)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert list(tmp_path.glob("state/ropewalk/runs/*")) == []
    (tmp_path / "train.py").touch()
    done = ropewalk("submit", "train.py", folder=tmp_path, XDG_STATE_HOME="/proc/nowhere")
    words = "records of submitted runs cannot be kept in /proc/nowhere/ropewalk/runs: "
    assert done.returncode == 2 and words in done.stderr and "; set XDG_STATE_HOME to a folder" in done.stderr
    unknown = call("attach", "nobody", **state)
    assert unknown.returncode == 2 and "'nobody' is not a run that was submitted here" in unknown.stderr


def test_a_word_for_several_runs_is_answered_with_a_list(tmp_path: Path, state: dict[str, str]) -> None:
    runs = [submit(tmp_path, "print('done')", **state) for _ in range(2)]
    for run in runs:
        call("attach", run, **state)
    for command in ("logs", "stop", "attach"):
        done = call(command, NAME, **state)
        assert done.returncode == 2 and all(run in done.stderr for run in runs), done.stderr


def test_a_word_means_the_run_that_goes_on_rather_than_those_that_have_ended(
    tmp_path: Path, state: dict[str, str]
) -> None:
    call("attach", submit(tmp_path, "print('done')", **state), **state)
    run = submit(tmp_path, WAITS, **state)
    wait_for("up", NAME, **state)
    assert f"{run} ended" in call("stop", NAME, **state).stdout


# --- on a cluster -----------------------------------------------------------------------------------------------------


def test_on_a_cluster_the_launcher_is_a_job_and_its_code_comes_along(tmp_path: Path, cluster: dict[str, str]) -> None:
    project = tmp_path / "project"
    (project / "pack").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / "pack/__init__.py").write_text("from pathlib import Path\nHERE = Path(__file__).parent\n")
    source = (
        "import sys, os\nsys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))\nimport pack\n"
        "from ropewalk import settings\n"
        "from ropewalk.processes.project_files import find_project\nfrom pathlib import Path\n"
        "s = settings.current()\n"
        "print('code', pack.HERE.name, find_project(Path(__file__), Path.cwd()).root == pack.HERE.parent)\n"
        "print('settings', s.engine, dict(s.engine_options), s.cpus, sys.argv[1:])\n"
        "print('place', __file__, os.getcwd(), flush=True)\nsys.exit(4)\n"
    )
    run = submit(
        project, source, "--engine", "pretend", "-o", "partition=gpu", "--cpus", "2", "--", "x y", **cluster
    )  # fmt: skip
    attached = call("attach", run, **cluster)
    assert attached.returncode == 4, attached.stderr
    assert "code pack True" in attached.stdout
    assert "settings pretend {'partition': 'gpu', 'inside': 'yes'} 2.0 ['x y']" in attached.stdout
    place = next(line for line in attached.stdout.splitlines() if line.startswith("place "))
    assert "ropewalk-code-" in place and place.endswith(str(project)), place
    facts = states(**cluster)[run]
    assert (facts["state"], facts["exit_code"], facts["engine"]) == ("ended", 4, "pretend") and facts["job"]
    assert call("logs", run, "--json", **cluster).stdout.count("\n") == attached.stdout.count("\n")
    assert not Path(place.split()[1]).exists()  # the unpacked code went with the job


def test_the_job_of_a_submitted_run_is_ended_by_its_id(tmp_path: Path, cluster: dict[str, str]) -> None:
    run = submit(tmp_path, WAITS, "--engine", "pretend", "--code", "shared", **cluster)
    wait_for("up", run, **cluster)
    assert states(**cluster)[run]["state"] == "running"
    stopped = call("stop", run, **cluster)
    assert stopped.returncode == 0, stopped.stderr
    facts = states(**cluster)[run]
    assert (facts["state"], facts["exit_code"]) == ("ended", 143)
    for _ in range(2):  # the script could clean up, and its output is kept although the cluster has forgotten it
        assert {"up", "cleaned up"} <= set(call("logs", run, **cluster).stdout.splitlines())


def test_without_a_grace_its_job_is_ended_at_once_and_the_output_is_kept(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    run = submit(tmp_path, WAITS, "--engine", "pretend", "--code", "shared", **cluster)
    wait_for("up", run, **cluster)
    assert call("stop", run, "--grace", "0", **cluster).returncode == 0
    facts = states(**cluster)[run]
    assert (facts["state"], facts["exit_code"]) == ("ended", None) and "it was stopped" in facts["reason"]
    said = call("logs", run, **cluster).stdout
    assert "up" in said and "cleaned up" not in said


def test_the_code_of_a_launcher_that_was_killed_is_removed_by_the_next_one(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    """Each launcher that a cluster killed left a copy of its project on a node, for good."""
    project, temporary = tmp_path / "project", tmp_path / "tmp"
    project.mkdir()
    temporary.mkdir()
    cluster = {**cluster, "TMPDIR": str(temporary)}

    def start() -> None:
        wait_for("up", submit(project, WAITS, "--engine", "pretend", **cluster), **cluster)

    start()
    [left] = temporary.glob("ropewalk-code-*")
    [job] = [int(file.read_text()) for file in tmp_path.glob("queue/*.pid")]
    [parent] = psutil.Process(job).children()
    [launcher] = parent.children()
    parent.kill()
    start()
    assert left.exists(), "the launcher goes on without its parent"
    launcher.kill()
    psutil.wait_procs([launcher])
    start()
    assert not left.exists()


def test_a_job_that_is_ended_before_its_launcher_begins_leaves_no_folder(tmp_path: Path) -> None:
    """A run that was stopped while its code was unpacked kept a folder in /tmp, until the next process of ours."""
    errand = RunSpec(
        file="/far/train.py", module=None, arguments=[], working_folder="/far", state_folder=str(tmp_path), root="/far"
    )
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "ropewalk.cli.submitted"],
        stdin=subprocess.PIPE,
        env=environment(TMPDIR=str(tmp_path / "tmp")),
    ) as job:
        assert job.stdin
        job.stdin.write(msgspec.json.encode(errand) + b"\n")
        job.stdin.flush()
        due = time.monotonic() + PATIENCE_S
        while not list(tmp_path.glob("tmp/ropewalk-code-*/*.claim")):  # it waits for the rest of the code
            assert time.monotonic() < due and job.poll() is None
            time.sleep(0.01)
        job.terminate()
        assert job.wait() == 128 + signal.SIGTERM
    assert list((tmp_path / "tmp").iterdir()) == []
    assert json.loads((tmp_path / "ended.json").read_text())["exit_code"] == 128 + signal.SIGTERM


def test_a_launcher_that_cannot_be_started_is_told_as_such(tmp_path: Path) -> None:
    # Its run was "lost", and said nothing of why.
    errand = RunSpec(
        file="train.py", module=None, arguments=[], working_folder=str(tmp_path / "gone"), state_folder=str(tmp_path)
    )
    job = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.submitted"],
        input=msgspec.json.encode(errand) + b"\n",
        env=environment(),
        capture_output=True,
    )
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert (job.returncode, ended["exit_code"]) == (1, 1)
    assert ended["reason"].startswith("the launcher cannot be started: ") and "/gone" in ended["reason"]
    assert job.stdout.decode() == f"ropewalk: {ended['reason']}\n" and not job.stderr


def test_the_code_of_a_job_is_not_unpacked_where_another_user_could_replace_it(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print(__file__)")
    bundle = make_bundle(find_project(tmp_path / "project" / "train.py", tmp_path / "project"), 1 << 20)
    errand = RunSpec(
        file=str(tmp_path / "project" / "train.py"), module=None, arguments=[], working_folder="/far", state_folder="",
        root=bundle.root,
    )  # fmt: skip
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o777)
    job = subprocess.run(
        [sys.executable, "-m", "ropewalk.cli.submitted"],
        input=msgspec.json.encode(errand) + b"\n" + bundle.data,
        env=environment(TMPDIR=str(tmp_path / "tmp")),
        stdout=subprocess.PIPE,
        check=True,
    )
    ran = job.stdout.decode().splitlines()[-1]
    assert ran.startswith("/tmp/ropewalk-code-") and ran.endswith("/train.py")
    assert not Path(ran).exists() and list((tmp_path / "tmp").iterdir()) == []


def test_a_launcher_that_could_not_use_its_engine_as_a_job_is_refused(tmp_path: Path, cluster: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text("")
    done = ropewalk("submit", "train.py", "--engine", "pretend", "-o", "outside=yes", folder=tmp_path, **cluster)
    assert done.returncode == 2 and "no launcher can be inside" in done.stderr


def test_a_cluster_that_refuses_leaves_nothing_and_its_words_are_shown(tmp_path: Path, cluster: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text("")
    done = ropewalk("submit", "train.py", "--engine", "pretend", "-o", "broken=yes", folder=tmp_path, **cluster)
    assert done.returncode == 2 and "takes no jobs today; ask its administrator" in done.stderr
    assert list(tmp_path.glob("state/ropewalk/runs/*")) == []


def test_a_job_whose_record_cannot_be_written_does_not_run_on(
    tmp_path: Path, cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full, or Ctrl-C came, after the job had been submitted: it ran, and nobody knew of it."""
    monkeypatch.setenv("PRETEND_QUEUE", cluster["PRETEND_QUEUE"])
    here: Any = importlib.import_module("ropewalk.cli.submit")
    monkeypatch.setattr(here, "make_engine", lambda _name, options: PretendCluster(options))

    jobs: list[int] = []

    def full(*_: object) -> None:
        jobs.extend(int(file.read_text()) for file in tmp_path.glob("queue/*.pid"))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(here, "write", full)
    errand = RunSpec(file=None, module="this", arguments=[], working_folder="/", state_folder="")
    monkeypatch.setenv("XDG_STATE_HOME", cluster["XDG_STATE_HOME"])
    with pytest.raises(OSError, match="No space left"):
        here._submit(errand, dataclasses.replace(settings.load({"code": "shared"}, {}, []), engine="pretend"))
    [job] = jobs
    assert os.waitpid(job, 0)[1] == signal.SIGKILL


def test_an_engine_that_does_not_answer_is_told_in_the_list(tmp_path: Path, cluster: dict[str, str]) -> None:
    run = submit(tmp_path, "", "--engine", "pretend", **cluster)
    forgotten = {**cluster, "PYTHONPATH": cluster["PYTHONPATH"].split(os.pathsep)[0]}  # the engine is not installed
    facts = states(**forgotten)[run]
    assert facts["state"] == "unknown" and "there is no engine 'pretend'" in facts["reason"]
    assert "options" not in facts
    due = time.monotonic() + PATIENCE_S
    while states(**cluster)[run]["state"] != "ended":
        assert time.monotonic() < due
        time.sleep(0.1)


def test_a_run_that_cannot_be_asked_is_not_stopped_and_can_be_forgotten(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    """Its ssh host, say, never comes back: it stayed in the list as `unknown` for ever."""
    go = tmp_path / "go"
    source = f"import os, time\nprint('up', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    run = submit(tmp_path, source, "--engine", "pretend", **cluster)
    wait_for("up", run, **cluster)
    silent = {**cluster, "PYTHONPATH": cluster["PYTHONPATH"].split(os.pathsep)[0]}  # the engine is not installed
    stopped = call("stop", run, **silent)
    assert stopped.returncode == 1 and f"{run} unknown" in stopped.stdout, stopped.stdout
    assert "there is no engine 'pretend'" in stopped.stdout
    assert "may still run" in stopped.stderr and f"ropewalk stop {run} --forget" in stopped.stderr
    assert run in states(**silent), "it is only forgotten when that is asked for"
    forgotten = call("stop", run, "--forget", **silent)
    assert forgotten.returncode == 0 and "is not ended" in forgotten.stderr, forgotten.stderr
    assert list(tmp_path.glob("state/ropewalk/runs/*")) == [] and states(**silent) == {}
    go.touch()  # the job has gone on
    (code,) = (file.with_suffix(".code") for file in tmp_path.glob("queue/*.pid"))
    due = time.monotonic() + PATIENCE_S
    while not (code.exists() and code.read_text() == "0\n"):
        assert time.monotonic() < due
        time.sleep(0.05)


def test_a_run_that_answers_is_stopped_before_it_is_forgotten(tmp_path: Path, state: dict[str, str]) -> None:
    run = submit(tmp_path, WAITS, **state)
    wait_for("up", run, **state)
    process = json.loads((tmp_path / "state/ropewalk/runs" / run / "process.json").read_text())["pid"]
    stopped = call("stop", run, "--forget", **state)
    assert stopped.returncode == 0 and f"{run} ended" in stopped.stdout, stopped.stdout + stopped.stderr
    assert stopped.stderr.endswith(f"{run} is forgotten here\n") and not psutil.pid_exists(process)
    assert list(tmp_path.glob("state/ropewalk/runs/*")) == []


def test_only_a_submitted_run_can_be_forgotten() -> None:
    refused = call("stop", "0123456789abcdef", "--forget")
    assert refused.returncode == 2 and "--forget is for submitted runs" in refused.stderr
