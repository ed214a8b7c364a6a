"""What another user puts into the folder that a program is started in: none of it runs as the program's user.

The scripts lie elsewhere, so Python itself imports nothing from that folder. The interpreters that Ropewalk starts once
did, because `python -m` looks there first: a planted `psutil.py` ran with the default engine.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import ropewalk
from ropewalk.interpreters import import_environment
from tests.other_users import MALLORY, as_user

#: Everything that an interpreter of ours imports first; those of Python's library stand for all of them.
PLANTED = (
    "psutil",
    "msgspec",
    "cloudpickle",
    "click",
    "rich",
    "ropewalk",
    "json",
    "logging",
    "socket",
    "subprocess",
    "mmap",
)


@pytest.fixture
def trap(everybodys: Path) -> Path:
    """A folder for all users, with modules of another one (if we may become one) that write down who imports them."""
    folder = everybodys / "shared"
    code = (
        f"import sys\nopen({str(everybodys / 'ran')!r}, 'a').write(__name__ + ' in ' + ' '.join(sys.orig_argv) + '\\n')"
    )

    def plant() -> None:
        folder.mkdir()
        folder.chmod(0o1777)
        for name in PLANTED:
            (folder / f"{name}.py").write_text(code)

    if os.getuid() == 0:
        as_user(MALLORY, plant)
    else:
        plant()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the user's own code lies: a module beside the script."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    (folder / "beside.py").write_text("def answer(_=0):\n    return 42\n")
    return folder


def write_script(home: Path, body: str) -> Path:
    script = home / "script.py"
    script.write_text(textwrap.dedent(body))
    return script


def run(trap: Path, *command: str, **variables: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROPEWALK_")}
    done = subprocess.run(
        command, cwd=trap, env={**environ, **variables}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def planted_that_ran(trap: Path) -> list[str]:
    file = trap.with_name("ran")
    return file.read_text().splitlines() if file.exists() else []


def test_the_trap_works(trap: Path) -> None:
    run(trap, sys.executable, "-c", "import psutil")
    assert planted_that_ran(trap) == ["psutil in " + f"{sys.executable} -c import psutil"]


@pytest.mark.parametrize("inherited", ["", f"{os.pathsep}/nowhere"])
def test_every_kind_of_process_on_this_host_comes_up_without_it(trap: Path, home: Path, inherited: str) -> None:
    """Pool, nested pool, preloaded modules, Process, queue and manager (depots), and a program's host."""
    if inherited:  # an empty entry is the current folder for the launcher as well, which it then has to leave behind
        trap.joinpath("go").mkdir()
        trap = trap / "go"
    script = write_script(
        home,
        """
        import os, sys
        os.chdir(os.environ["TRAP"])
        import ropewalk as rw, beside

        class Total:
            def add(self): return beside.answer()

        class Adder:
            def __init__(self, total): self.total = total
            def run(self): assert self.total.add() == 42; rw.stop()

        def nested(_):
            with rw.Pool(1) as pool:
                return pool.map(beside.answer, [0])

        def put(queue):
            queue.put(beside.answer())

        if __name__ == "__main__":
            with rw.Pool(1, preload=["beside"]) as pool:
                assert pool.map(nested, [0]) == [[42]]
            queue = rw.Queue()
            process = rw.Process(target=put, args=(queue,))
            process.start(); assert queue.get() == 42; process.join()
            with rw.Manager() as manager:
                assert manager.dict(a=1)["a"] == 1
            program = rw.Program("p")
            program.add(rw.Worker(Adder, program.add(rw.Service(Total), name="total")), name="adder")
            program.launch().wait()
            print("done")
        """,
    )
    shared = trap.parent if inherited else trap
    command = [sys.executable, str(script)]
    assert run(trap, *command, TRAP=str(shared), PYTHONPATH=inherited).endswith("done\n")
    assert planted_that_ran(shared) == []


def test_a_submitted_run_imports_from_the_folder_of_its_script_and_not_from_where_it_was_submitted(
    trap: Path, home: Path, tmp_path: Path
) -> None:
    script = write_script(home, "import beside, sys; print(beside.answer(), sys.argv[1:])")
    command = [sys.executable, "-P", "-m", "ropewalk"]
    state = str(tmp_path / "state")
    id = run(trap, *command, "submit", str(script), "--", "a", XDG_STATE_HOME=state).strip()
    assert "42 ['a']" in run(trap, *command, "attach", id, XDG_STATE_HOME=state)
    assert planted_that_ran(trap) == []


def test_jobs_of_the_engine_mpi_import_nothing_from_where_they_start(trap: Path, home: Path, tmp_path: Path) -> None:
    mpiexec = tmp_path / "mpiexec"  # one rank, on this machine
    mpiexec.write_text('#!/bin/sh\nshift 2\nPMI_RANK=0 exec "$@"\n')
    mpiexec.chmod(0o755)
    body = """
        import ropewalk as rw, beside
        if __name__ == "__main__":
            with rw.Pool(1, engine="mpi") as pool:
                print(pool.map(beside.answer, [0]))
        """
    options = json.dumps({"mpiexec": str(mpiexec), "folder": str(tmp_path / "mpi")})
    command = [sys.executable, str(write_script(home, body))]
    assert run(trap, *command, ROPEWALK_ENGINE="mpi", ROPEWALK_ENGINE_OPTIONS=options) == "[42]\n"
    assert planted_that_ran(trap) == []


def test_a_probe_of_this_machine_imports_nothing_from_where_it_runs(trap: Path, home: Path) -> None:
    script = write_script(home, "from ropewalk.pipeline import probe; print(len(probe(device='cpu').levels))")
    assert run(trap, sys.executable, str(script)) == "1\n"
    assert planted_that_ran(trap) == []


def test_no_command_of_ours_lets_python_look_into_the_current_folder() -> None:
    """Also where no test can start it: each list of words with `-m` or `-c` is for a shell, or has -P or -I before."""
    seen: list[str] = []
    folder = Path(ropewalk.__file__).parent
    for source in sorted(set(folder.rglob("*.py")) - set((folder / "testing").rglob("*.py"))):
        text = source.read_text()
        for words in _lists_of_words(text) if '"-m"' in text or '"-c"' in text else ():
            for before, word in itertools.pairwise(words):
                if word in ("-m", "-c") and words[0] not in ("sh", "/bin/sh", "/bin/bash"):
                    seen.append(f"{source.name} {before} {word}")
    # Both take the folder off the import path themselves, before they import anything.
    by_themselves = ["submitted.py  -c", "docker_check.py  -c"]
    assert [each for each in seen if " -P " not in each and " -I " not in each] == by_themselves
    assert len(seen) > len(by_themselves)


def _lists_of_words(text: str) -> Iterator[list[str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.List):
            yield [str(ast.literal_eval(each)) if isinstance(each, ast.Constant) else "" for each in node.elts]


def test_of_an_import_path_only_what_python_would_take_for_the_current_folder_is_left_out() -> None:
    installed = import_environment({}).get("PYTHONPATH", "")
    for inherited, expected in (("/a:/b", "/a:/b"), (":/a", "/a"), ("/a:", "/a"), ("/a::/b", "/a:/b"), (":", "")):
        changed = import_environment({"PYTHONPATH": inherited}).get("PYTHONPATH", inherited)
        assert changed == (f"{installed}:{expected}".rstrip(":") if installed else expected)
    assert import_environment({"PYTHONPATH": "src"})["PYTHONPATH"].split(":")[-1] == os.path.abspath("src")
