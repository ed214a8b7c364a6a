"""Workers of xdist stay in their folders until nothing is left to do there."""

from __future__ import annotations

import pytest

pytest.importorskip("xdist", reason="`make test` runs tests in several workers: pip install pytest-xdist")

from tests.file_order import folder_of, next_file

FILES = {
    "tests/rl/test_a.py": 50,
    "tests/pool/test_b.py": 40,
    "tests/calls/test_c.py": 30,
    "tests/rl/replay/test_d.py": 20,
    "tests/test_e.py": 25,
    "tests/pool/test_f.py": 5,
}


def test_a_folder_has_all_that_is_below_it() -> None:
    assert [folder_of(file) for file in FILES] == [
        "tests/rl", "tests/pool", "tests/calls", "tests/rl", "tests", "tests/pool",
    ]  # fmt: skip
    assert folder_of("engines/slurm") == "engines"


def test_a_worker_goes_on_in_its_folder_with_the_first_file() -> None:
    assert next_file(FILES, "tests/pool", ()) == "tests/pool/test_b.py"
    assert next_file(FILES, "tests/pool", {"tests/pool"}) == "tests/pool/test_b.py"


def test_a_worker_without_a_folder_takes_the_largest_in_which_nobody_is() -> None:
    assert next_file(FILES, None, ()) == "tests/rl/test_a.py"
    assert next_file(FILES, "tests/done", {"tests/rl"}) == "tests/pool/test_b.py"


def test_folders_of_long_tests_begin_first() -> None:
    waiting = FILES | {"tests/examples/test_g.py": 2, "tests/scenarios/test_h.py": 10}
    assert next_file(waiting, None, ()) == "tests/examples/test_g.py"
    assert next_file(waiting, None, {"tests/examples"}) == "tests/scenarios/test_h.py"
    assert next_file(waiting, "tests/pool", ()) == "tests/pool/test_b.py"


def test_when_all_folders_are_taken_the_largest_is_shared() -> None:
    others = {folder_of(file) for file in FILES}
    assert next_file(FILES, "tests/done", others) == "tests/rl/test_a.py"


def test_workers_change_folders_as_seldom_as_can_be() -> None:
    waiting, took = dict(FILES), list[tuple[int, str]]()
    folders: list[str | None] = [None, None]
    while waiting:
        for worker in range(2):
            if not waiting:
                break
            file = next_file(waiting, folders[worker], {folders[1 - worker] or ""})
            del waiting[file]
            folders[worker] = folder_of(file)
            took.append((worker, folder_of(file)))
    assert len(took) == len(FILES)
    assert [[each for worker, each in took if worker == number] for number in range(2)] == [
        ["tests/rl", "tests/rl", "tests/calls"],
        ["tests/pool", "tests/pool", "tests"],
    ]
