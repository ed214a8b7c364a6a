"""A dump of faulthandler is found in a process's output, and shown from the user's code on."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from ropewalk.control import process_stacks as stacks
from ropewalk.control.process_stacks import is_whole, of_processes, parse

DUMP = """\
Thread 0x00007f66dd0526c0 (most recent call first):
  File "{ours}/loop.py", line 290 in _watch
  File "{threading}", line 1002 in _bootstrap

Current thread 0x00007f66df69fb80 (most recent call first):
  File "/home/me/train.py", line 17 in nap
  File "/home/me/train.py", line 18 in main
  File "{ours}/program/nodes/worker.py", line 63 in run
  File "<frozen runpy>", line 198 in _run_module_as_main
""".format(ours=Path(parse.__code__.co_filename).parents[1], threading=threading.__file__)


def show(path: Path, text: str) -> str:
    def ask(name: str) -> None:
        with path.open("a") as file:
            file.write(text)

    return of_processes({"actor.0": path}, ask, 5)["actor.0"]


def test_only_the_users_code_is_shown_the_latest_call_last(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("printed before\n" + DUMP.replace("nap", "older"))
    shown = show(tmp_path / "log", DUMP)
    lines = ['  File "/home/me/train.py", line 18, in main', '  File "/home/me/train.py", line 17, in nap']
    assert shown.splitlines() == lines


def test_what_the_node_prints_meanwhile_is_left_out(tmp_path: Path) -> None:
    mixed = "".join(f"{line}\nstep 7 of File\n" for line in DUMP.splitlines())
    assert show(tmp_path / "log", mixed) == show(tmp_path / "log", DUMP)


def test_a_dump_is_whole_with_the_beginning_of_the_main_thread_and_not_before() -> None:
    lines = DUMP.splitlines(keepends=True)
    seen = [is_whole(parse("".join(lines[:number]))) for number in range(len(lines) + 1)]
    assert seen == [False] * len(lines) + [True]
    main = """
import faulthandler, sys, threading, time
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
faulthandler.dump_traceback(sys.stdout)
"""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "dumper.py").write_text(main)
        done = subprocess.run([sys.executable, "-m", "dumper"], cwd=folder, capture_output=True, text=True, check=True)
    assert is_whole(parse(done.stdout)), "this Python does not end with its main thread"
    threads = done.stdout.split("\n\n")
    assert len(threads) == 2 and not is_whole(parse(threads[0]))


def test_a_dump_that_comes_in_pieces_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_QUIET_S", 1000.0)
    first, last = DUMP.split("\n\n")
    feeder = threading.Timer(0.3, lambda: (tmp_path / "log").write_text(f"{first}\n\n{last}"))

    def ask(name: str) -> None:
        (tmp_path / "log").write_text(first)
        feeder.start()

    shown = of_processes({"actor.0": tmp_path / "log"}, ask, 100)["actor.0"]
    assert shown.splitlines()[-1].endswith("in nap")


def test_a_stack_too_deep_to_have_a_beginning_is_taken_when_nothing_follows(tmp_path: Path) -> None:
    deep = DUMP.replace('  File "<frozen runpy>", line 198 in _run_module_as_main', "  ...")
    assert show(tmp_path / "log", deep) == show(tmp_path / "log", DUMP)


def test_a_process_that_runs_no_code_of_the_user_says_so(tmp_path: Path) -> None:
    ours = DUMP.replace("/home/me/train.py", "<frozen importlib._bootstrap>")
    assert show(tmp_path / "log", ours) == "(none of its threads runs code of yours)\n"


def test_a_process_that_does_not_answer_says_so_in_time(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(DUMP)
    shown = of_processes({"actor.0": tmp_path / "log", "actor.1": tmp_path / "none"}, lambda _: None, 0.2)
    assert set(shown.values()) == {"(it did not answer within 0.2 s: it is stopped, or has ended)\n"}


def test_nodes_that_share_a_process_are_asked_once(tmp_path: Path) -> None:
    asked: list[str] = []
    of_processes({"a.0": tmp_path / "log", "b.0": tmp_path / "log"}, asked.append, 0.05)
    assert asked == ["a.0"]


def test_the_dump_of_this_python_is_understood() -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        found = parse(file.read())
    here = [frame for stack in found for frame in stack if frame.filename == __file__]
    assert [frame.name for frame in here] == ["test_the_dump_of_this_python_is_understood"]
