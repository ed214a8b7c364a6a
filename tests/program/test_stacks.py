"""A dump of faulthandler is found in a process's output, and shown from the user's code on."""

from __future__ import annotations

import faulthandler
import tempfile
import threading
from pathlib import Path

from ropewalk.program.stacks import of_processes, parse

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
        stacks = parse(file.read())
    here = [frame for stack in stacks for frame in stack if frame.filename == __file__]
    assert [frame.name for frame in here] == ["test_the_dump_of_this_python_is_understood"]
