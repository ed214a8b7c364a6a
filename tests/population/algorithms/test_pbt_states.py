"""Files of states: whole or not there, small to name, and removed once nobody wants them."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.errors import CheckpointCorrupt, FileNotTrusted
from ropewalk.population.algorithms.pbt import PBT
from ropewalk.population.algorithms.pbt_member import LOST, Interval, PBTMember
from ropewalk.population.algorithms.pbt_states import StateFile, StateFolder, write_file
from ropewalk.population.trial import Trial
from tests.population.algorithms.surrogate import SPACE, outcomes_of, run, train


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_state_comes_back_as_it_was_and_writable(tmp_path: Path) -> None:
    state: dict[str, Any] = {"weights": np.arange(5000.0), "moments": [np.ones(3), None], "step": 7}
    file = write_file(str(tmp_path), 3, 12, state)
    assert file.name.startswith("member-0003-interval-000012-")
    back = file.get()
    assert np.array_equal(back["weights"], state["weights"]) and back["step"] == 7
    back["weights"] += 1
    back["moments"][0][0] = 5
    assert file.get()["weights"][0] == 0 and len(pickle.dumps(file)) < 400


def test_a_state_that_another_user_could_have_written_is_not_unpickled(tmp_path: Path) -> None:
    file = write_file(str(tmp_path / "states"), 3, 12, {"step": 7})
    path = tmp_path / "states" / file.name
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
    path.chmod(0o660)
    os.chown(path, -1, 54_321)
    with pytest.raises(FileNotTrusted):
        file.get()
    path.parent.chmod(0o777)
    with pytest.raises(FileNotTrusted):
        write_file(str(tmp_path / "states"), 3, 13, {"step": 8})


def test_a_damaged_or_missing_file_is_a_lost_state_not_an_error_of_training(tmp_path: Path) -> None:
    algorithm = PBT(SPACE, population=2, folder=tmp_path)
    run(algorithm, 2, most=1)
    asked = algorithm.ask(2)
    paths = [Path(each.state.folder, each.state.name) for each in asked if isinstance(each.state, StateFile)]
    paths[0].write_bytes(paths[0].read_bytes()[:-1] + b"?")
    paths[1].unlink(missing_ok=True)  # the same file if one has copied the other
    for outcome in outcomes_of(algorithm, asked):
        assert outcome.failure.startswith(f"{LOST}that of member") and outcome.held is None
    with pytest.raises((FileNotFoundError, CheckpointCorrupt)):
        algorithm._members[0].state.get()  # pyright: ignore


def test_files_that_neither_members_nor_checkpoints_need_are_removed(tmp_path: Path) -> None:
    algorithm = PBT(SPACE, population=4, folder=tmp_path, keep=2)
    run(algorithm, 4, most=1)
    saved = [algorithm.state_dict()]
    run(algorithm, 4, most=2)
    saved.append(algorithm.state_dict())
    run(algorithm, 4, most=3)
    wanted = [set(filter(None, each["files"]["names"])) for each in saved]
    assert wanted[0] | wanted[1] <= names(tmp_path)
    for each in saved:
        resumed = PBT(SPACE, population=4, folder=tmp_path, keep=2)
        resumed.load_state_dict(each)
        assert all(member.state.get() is not None for member in resumed._members if member.state)  # pyright: ignore[reportPrivateUsage]
        del resumed
    for _ in range(2):  # those that are kept now
        algorithm.state_dict()
    run(algorithm, 4, most=2)
    assert not (wanted[0] | wanted[1]) & names(tmp_path)
    assert len(names(tmp_path)) <= 3 * 4


def test_an_incumbent_that_somebody_keeps_keeps_its_file(tmp_path: Path) -> None:
    algorithm = PBT(SPACE, population=2, folder=tmp_path, keep=1)
    run(algorithm, 2, most=1)
    early = algorithm.incumbent()
    assert early is not None
    copy = pickle.loads(pickle.dumps(early))
    assert len(pickle.dumps(early)) < 1000
    run(algorithm, 2, most=6)
    assert np.array_equal(early.state, copy.state)
    before = names(tmp_path)
    del early, copy
    run(algorithm, 2, most=2)
    assert not any("interval-000000" in name for name in names(tmp_path)), before


def test_what_killed_and_dropped_workers_leave_goes_and_other_files_stay(tmp_path: Path) -> None:
    old, new = f"member-0001-interval-000001-{'0' * 16}.state", f"member-0001-interval-000009-{'0' * 16}.state"
    for name in (
        old,
        f".{old}.4711-00112233",
        new,
        f".{new}.4711-00112233",
        "notes.txt",
        f"member-0007-interval-000000-{'0' * 16}.state",
    ):
        (tmp_path / name).write_text("x")
    StateFolder(tmp_path, keep=1).remove([9, 9])
    left = {new, f".{new}.4711-00112233", "notes.txt", f"member-0007-interval-000000-{'0' * 16}.state"}
    assert names(tmp_path) == left


def test_there_is_one_object_for_a_file_in_a_process() -> None:
    first = StateFile("/a", "b")
    assert pickle.loads(pickle.dumps(first)) is first is StateFile("/a", "b") is not StateFile("/a", "c")


def test_a_member_fetches_its_state_when_it_is_read_and_not_when_it_travels(tmp_path: Path) -> None:
    file = write_file(str(tmp_path), 0, 0, np.zeros(100_000))
    member = PBTMember(0, 1, 1, {"h0": 1.0}, file)
    assert len(pickle.dumps(member)) < 1000
    member.state += 1
    assert member.state[0] == 1 and np.array_equal(file.get(), np.zeros(100_000))


def test_the_state_of_an_interval_that_fails_while_training_is_as_before(tmp_path: Path) -> None:
    algorithm = PBT(SPACE, population=1, folder=tmp_path)
    run(algorithm, 1, most=1)
    (interval,) = algorithm.ask(1)

    def fail(member: PBTMember, trial: Trial) -> float:
        member.state += 99
        raise ArithmeticError("diverged")

    with pytest.raises(ArithmeticError):
        algorithm.evaluator()(fail, interval, Trial(0))
    algorithm.drop([interval])
    (again,) = algorithm.ask(1)
    assert outcomes_of(algorithm, [again], train)[0].fitness < 2


WRITE_FOR_EVER = """
import sys
import numpy as np
from ropewalk.population.algorithms.pbt_states import write_file

print("ready", flush=True)
number = 0
while True:
    write_file(sys.argv[1], 0, number % 2, np.full(400_000, float(number)))
    number += 1
"""


def test_a_worker_killed_while_writing_leaves_whole_files_only(tmp_path: Path) -> None:
    for _ in range(2):
        worker = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE)
        assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
        while not any(tmp_path.glob(".member-*")):  # it is in the middle of one
            pass
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
    whole = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    for path in whole:
        value = StateFile(str(tmp_path), path.name).get()
        assert value.shape == (400_000,) and (value == value[0]).all()
    StateFolder(tmp_path, keep=1).remove([2])
    assert names(tmp_path) == set()


def test_an_interval_compares_equal_after_its_way_to_a_worker(tmp_path: Path) -> None:
    algorithm = PBT(SPACE, population=1, folder=tmp_path)
    run(algorithm, 1, most=1)
    (interval,) = algorithm.ask(1)
    back = pickle.loads(pickle.dumps(interval))
    assert isinstance(back, Interval) and back == interval
