"""`ropewalk doctor --engine`, `doctor --leftovers` and `stop RUN`: a cluster is checked, and what was left is ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.processes.left_folders import mark_folder
from tests.cli.command import environment, ropewalk
from tests.cli.pretend_cluster import installed, runs

GONE, ALIVE, UNKNOWN = "0" * 16, "1" * 16, "2" * 16

#: A launcher with a job on the cluster, which is killed or stays.
LAUNCHER = """
import sys
from ropewalk.engines import make_engine
from ropewalk.engines.engine import JobSpec
from ropewalk.processes.launcher_record import LauncherRecord
run, recorded = sys.argv[1], sys.argv[2] == "recorded"
record = LauncherRecord(run, "pretend") if recorded else None
print(*make_engine("pretend").submit(JobSpec(["sleep", "600"]), 2, run, "agent"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir()  # in the usual one there may be folders of other programs of this user
    yield installed(tmp_path) | {"ROPEWALK_RUN_FOLDER": str(tmp_path / "run"), "TMPDIR": str(tmp_path / "tmp")}
    for file in tmp_path.glob("queue/*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)


@contextlib.contextmanager
def launcher(run: str, cluster: dict[str, str], *, recorded: bool = True) -> Generator[list[str]]:
    command = [sys.executable, "-c", LAUNCHER, run, "recorded" if recorded else "not"]
    process = subprocess.Popen(
        command, env=environment(**cluster), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        yield process.stdout.readline().split()
    finally:
        process.kill()
        process.communicate()


def leftovers(cluster: dict[str, str], *arguments: str) -> tuple[int, dict[str, Any]]:
    done = ropewalk("doctor", "--leftovers", "--json", *arguments, folder=Path(), **cluster)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def jobs(cluster: dict[str, str]) -> set[str]:
    """Jobs whose processes run."""
    files = Path(cluster["PRETEND_QUEUE"]).glob("*.pid")
    return {file.stem for file in files if runs(int(file.read_text()))}


def test_jobs_of_launchers_that_are_gone_are_listed_and_ended_and_others_stay(cluster: dict[str, str]) -> None:
    with launcher(GONE, cluster) as gone:
        pass
    with launcher(UNKNOWN, cluster, recorded=False) as unknown, launcher(ALIVE, cluster) as alive:
        code, found = leftovers(cluster)
        rows = {run["run_id"]: (run["launcher"], run["removed"]) for run in found["runs"]}
        assert code == 1 and rows == {GONE: ("gone", False), UNKNOWN: ("unknown", False)}
        assert set(gone) < jobs(cluster)
        shown = ropewalk("doctor", "--leftovers", folder=Path(), **cluster).stdout
        assert f"run {GONE} on pretend: 2 jobs" in shown and "--remove" in shown
        assert f"ropewalk stop {UNKNOWN} --engine pretend ends it" in shown
        _, removed = leftovers(cluster, "--remove")
        assert {run["run_id"]: run["removed"] for run in removed["runs"]} == {GONE: True, UNKNOWN: False}
        assert jobs(cluster) == {*unknown, *alive}


def test_what_ended_jobs_of_a_gone_launcher_have_left_is_listed_and_removed(cluster: dict[str, str]) -> None:
    with launcher(ALIVE, cluster) as alive:
        with launcher(GONE, cluster) as gone, launcher(UNKNOWN, cluster, recorded=False) as unknown:
            end(cluster, alive[0], gone[0], *unknown)
        _, found = leftovers(cluster)
        rows = {run["run_id"]: (run["jobs"], run["remains"]) for run in found["runs"]}
        assert rows == {GONE: (gone[1:], [f"order {gone[0]}"]), UNKNOWN: ([], [f"order {id}" for id in unknown])}
        shown = ropewalk("doctor", "--leftovers", folder=Path(), **cluster).stdout
        assert f"run {GONE} on pretend: 1 job ({gone[1]}), order {gone[0]}; its launcher is gone" in shown
        assert f"stop {GONE} --engine pretend ends and removes it" in shown
        assert f"stop {UNKNOWN} --engine pretend removes it" in shown
        assert leftovers(cluster, "--remove")[0] == 1, "of one nobody here knows whether its launcher lives"
        _, left = leftovers(cluster)
        assert [run["run_id"] for run in left["runs"]] == [UNKNOWN]
    stopped = ropewalk("stop", UNKNOWN, "--engine", "pretend", folder=Path(), **cluster)
    removed = ", ".join(f"order {id}" for id in unknown)
    assert stopped.stdout == f"ended 0 jobs of run {UNKNOWN} on pretend, and removed {removed}\n"
    left = {run["run_id"]: run["remains"] for run in leftovers(cluster)[1]["runs"]}
    assert left == {ALIVE: [f"order {alive[0]}"]}, "its launcher has gone meanwhile"


def test_runs_that_were_started_with_other_options_are_found_with_these(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    # The files of a Slurm run with `-o folder=/scratch/me` were never found: both commands looked in the usual folder.
    (tmp_path / "other").mkdir()
    with launcher(GONE, cluster) as gone:
        end(cluster, *gone)
    for file in (tmp_path / "queue").iterdir():
        file.rename(tmp_path / "other" / file.name)
    there = ["--engine", "pretend", "-o", f"queue={tmp_path / 'other'}"]
    assert leftovers(cluster)[1]["runs"] == []
    remains = [f"order {id}" for id in gone]
    shown = ropewalk("doctor", "--leftovers", *there, folder=Path(), **cluster).stdout
    assert f"ropewalk stop {GONE} {' '.join(there)} removes it" in shown, "without the option it finds nothing"
    assert f"ropewalk doctor --leftovers --remove {' '.join(there)} ends" in shown
    assert [run["remains"] for run in leftovers(cluster, *there)[1]["runs"]] == [remains]
    stopped = ropewalk("stop", GONE, *there, folder=Path(), **cluster)
    assert stopped.stdout == f"ended 0 jobs of run {GONE} on pretend, and removed {', '.join(remains)}\n"
    assert leftovers(cluster, *there) == (0, {"runs": [], "folders": [], "problems": [], "skipped": []})


def test_an_engine_that_was_used_once_and_cannot_be_used_now_is_skipped_in_one_line(cluster: dict[str, str]) -> None:
    """The record of a killed launcher with the engine docker made every later command fail on a machine without it."""
    record = "from ropewalk.processes.launcher_record import LauncherRecord; record = LauncherRecord('3' * 16, 'moved')"
    subprocess.run([sys.executable, "-c", f"{record}; import os; os._exit(0)"], env=environment(**cluster), check=True)
    done = ropewalk("doctor", "--leftovers", folder=Path(), **cluster)
    assert done.returncode == 0 and done.stdout == "nothing was found\n"
    assert done.stderr.startswith("ropewalk doctor: the engine 'moved' cannot be used here, and was not asked: ")
    assert len(done.stderr.splitlines()) == 1
    with launcher(GONE, cluster):
        pass
    code, found = leftovers(cluster)
    assert code == 1 and [run["run_id"] for run in found["runs"]] == [GONE] and len(found["skipped"]) == 1
    assert leftovers(cluster, "--engine", "moved")[0] == 1, "it was named"


def test_options_without_an_engine_are_refused(cluster: dict[str, str]) -> None:
    for words in (["doctor", "--leftovers"], ["stop", GONE], ["stop", "descent"]):
        done = ropewalk(*words, "-o", "queue=x", folder=Path(), **cluster)
        assert done.returncode == 2 and "--engine" in done.stderr, done.stderr


def end(cluster: dict[str, str], *ids: str) -> None:
    """The cluster has ended jobs, and keeps what they were asked for."""
    for id in ids:
        os.killpg(int((Path(cluster["PRETEND_QUEUE"]) / f"{id}.pid").read_text()), signal.SIGKILL)
    while set(ids) & jobs(cluster):
        time.sleep(0.01)


def test_jobs_that_may_be_of_a_submitted_run_are_told_as_such(tmp_path: Path, cluster: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(60)")
    run = ropewalk("submit", "train.py", "--engine", "pretend", folder=tmp_path, **cluster).stdout.strip()
    with launcher(UNKNOWN, cluster, recorded=False), launcher(GONE, cluster):
        pass
    shown = ropewalk("doctor", "--leftovers", folder=Path(), **cluster).stdout.splitlines()
    assert [f"may be of {run}" in line for line in shown] == [False, True, False], shown
    ropewalk("stop", run, folder=Path(), **cluster)


def test_a_run_is_ended_by_the_id_that_its_jobs_bear(cluster: dict[str, str]) -> None:
    with launcher(UNKNOWN, cluster, recorded=False):
        pass
    nowhere = ropewalk("stop", UNKNOWN, folder=Path(), **cluster)
    assert nowhere.returncode == 2 and "name another with --engine" in nowhere.stderr
    stopped = ropewalk("stop", UNKNOWN, "--engine", "pretend", folder=Path(), **cluster)
    assert (stopped.returncode, stopped.stdout) == (0, f"ended 2 jobs of run {UNKNOWN} on pretend\n")
    assert jobs(cluster) == set()
    again = ropewalk("stop", UNKNOWN, "--engine", "pretend", folder=Path(), **cluster)
    assert again.returncode == 2 and f"no jobs of a run {UNKNOWN} were found" in again.stderr


def test_folders_in_which_nobody_listens_are_removed_when_asked(tmp_path: Path, cluster: dict[str, str]) -> None:
    for name in ("left", "used", "young", "code"):
        (tmp_path / f"run/ropewalk-{name}").mkdir(mode=0o700)
        mark_folder(tmp_path / f"run/ropewalk-{name}")
    (tmp_path / "run/ropewalk-code/train.py").touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "run/ropewalk-used/launcher.sock"))
        listener.listen()
        for name in ("left", "young"):
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(tmp_path / f"run/ropewalk-{name}/launcher.sock"))
        for name in ("left", "used", "code"):
            os.utime(tmp_path / f"run/ropewalk-{name}", (1, 1))
        code, found = leftovers(cluster)
        mine = [row for row in found["folders"] if row["path"].startswith(str(tmp_path))]
        assert code == 1 and [(row["path"], row["removed"]) for row in mine] == [
            (str(tmp_path / "run/ropewalk-left"), False)
        ]
        leftovers(cluster, "--remove")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "ropewalk-code", "ropewalk-used", "ropewalk-young",
    ]  # fmt: skip


def test_folders_of_other_hosts_that_share_them_are_listed_and_stay(tmp_path: Path, cluster: dict[str, str]) -> None:
    # With `run_folder` on a shared disk, sockets of other hosts are answered only there: `--remove` took the folders of
    # their launchers from under them.
    made = {"far": "another-boot far", "alike": f"another-boot {os.uname().nodename}", "old": None, "claimed": "x far"}
    for name, mark in made.items():
        folder = tmp_path / f"run/ropewalk-{name}"
        folder.mkdir(mode=0o700)
        if mark is not None:
            (folder / ("owner.claim" if name == "claimed" else "made.on")).write_text(mark)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(folder / "launcher.sock"))
        os.utime(folder, (1, 1))
    code, found = leftovers(cluster, "--remove")
    told = {Path(row["path"]).name: row["detail"] for row in found["folders"] if row["path"].startswith(str(tmp_path))}
    assert code == 1 and not any(row["removed"] for row in found["folders"] if Path(row["path"]).name in told)
    assert told["ropewalk-far"] == "it was made on far; whether its processes run cannot be seen here"
    assert told["ropewalk-claimed"] == told["ropewalk-far"]
    assert "before the last start of this machine, or on another one of that name" in told["ropewalk-alike"]
    assert "does not say on which host" in told["ropewalk-old"]
    shown = ropewalk("doctor", "--leftovers", folder=Path(), **cluster).stdout
    assert f"if nothing of it runs there, rm -r {tmp_path}/run/ropewalk-far removes it" in shown
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(f"ropewalk-{name}" for name in made)


def test_jobs_of_a_launcher_on_another_host_of_the_same_name_are_told_and_stay(cluster: dict[str, str]) -> None:
    # Two clusters may share a home, and call a host alike: the other's launcher counted as gone since a reboot of ours.
    with launcher(GONE, cluster) as kept:
        pass
    [record] = Path(cluster["XDG_STATE_HOME"]).glob(f"ropewalk/launchers/{GONE}.json")
    facts = json.loads(record.read_text())
    record.write_text(json.dumps({**facts, "boot_id": "another"}))
    code, found = leftovers(cluster, "--remove")
    [run] = found["runs"]
    assert code == 1 and (run["launcher"], run["removed"]) == ("on another host", False)
    assert "or on another one of that name; whether it runs cannot be seen here" in run["detail"]
    assert set(kept) <= jobs(cluster)


HANGING_CLUSTER = """
import threading
import ropewalk as rw
from ropewalk.processes import engine_client
from tests.cli.pretend_cluster import PretendCluster

if __name__ == "__main__":
    engine_client._CLOSE_TOLD_S, engine_client._CLOSE_S = 0.1, 0.3
    with rw.Session("pretend", hosts=1) as session, rw.Pool(1, session=session) as pool:
        print(pool.apply(abs, (-7,)), flush=True)
        PretendCluster.find = lambda *_: threading.Event().wait()
"""


def test_a_session_whose_cluster_hangs_at_its_end_ends_and_leaves_its_record(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    (tmp_path / "hangs.py").write_text(HANGING_CLUSTER)
    command = [sys.executable, "hangs.py"]
    done = subprocess.run(
        command, env=environment(**cluster), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    assert "has been asked for 0.1 s which jobs run" in done.stderr and "--engine pretend` ends jobs" in done.stderr
    [record] = Path(cluster["XDG_STATE_HOME"]).glob("ropewalk/launchers/*.json")
    assert json.loads(record.read_text())["engine"] == "pretend"


# --- checks -----------------------------------------------------------------------------------------------------------


def test_an_engine_is_checked_with_its_own_options_and_says_how_to_mend_it(cluster: dict[str, str]) -> None:
    done = ropewalk("doctor", "--engine", "pretend", "-o", "partition=gpu", "--json", folder=Path(), **cluster)
    rows = {row["what"]: row for row in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0 and list(rows) == ["pretend command", "queue"]
    assert rows["queue"]["value"] == "partition gpu"
    broken = ropewalk("doctor", "--engine", "pretend", "--option", "broken=yes", folder=Path(), **cluster)
    assert broken.returncode == 1 and "start it with: pretend start" in broken.stdout


def test_an_engine_that_is_not_known_is_a_failure_that_lists_those_there_are(cluster: dict[str, str]) -> None:
    done = ropewalk("doctor", "--engine", "pretent", folder=Path(), **cluster)
    assert done.returncode == 1 and "There are docker, " in done.stdout and "did you mean 'pretend'?" in done.stdout
    option = ropewalk("doctor", "--engine", "pretend", "-o", "partitoin=x", folder=Path(), **cluster)
    assert option.returncode == 1 and "did you mean partition?" in option.stdout
