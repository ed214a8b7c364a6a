"""`ropewalk run`: the script runs as under `python FILE`; the first signal asks, the second insists."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from ropewalk.cli import run
from ropewalk.processes import interrupts
from ropewalk.program.script_code import NotAProgram, load_file, load_module
from tests.cli.command import environment, ropewalk, ropewalk_alone, start_ropewalk
from tests.patience import PATIENCE_S


def write(folder: Path, name: str, source: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


# --- as python would --------------------------------------------------------------------------------------------------

SURROUNDINGS = """
    import json, pickle, sys
    class Local: pass
    print(json.dumps({
        "argv": sys.argv, "name": __name__, "file": __file__, "path0": sys.path[0], "package": __package__,
        "spec": getattr(__spec__, "name", None), "main": sys.modules["__main__"].__dict__ is globals(),
        "pickled": isinstance(pickle.loads(pickle.dumps(Local())), Local), "loader": type(__loader__).__name__,
    }))
"""


def test_a_script_sees_what_it_sees_under_python(tmp_path: Path) -> None:
    write(tmp_path, "scripts/show.py", SURROUNDINGS)
    ours = ropewalk_alone("run", "scripts/show.py", "--", "--seed", "7", "x", folder=tmp_path)
    pythons = subprocess.run(
        [sys.executable, "scripts/show.py", "--seed", "7", "x"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert ours.returncode == 0 and ours.stderr == ""
    assert '"main": true' in ours.stdout and '"pickled": true' in ours.stdout
    assert ours.stdout == pythons.stdout


def test_a_module_sees_what_it_sees_under_python(tmp_path: Path) -> None:
    write(tmp_path, "pack/__init__.py", "")
    write(tmp_path, "pack/tool.py", SURROUNDINGS)
    write(tmp_path, "pack/__main__.py", "print('package', __package__)")
    ours = ropewalk_alone("run", "-m", "pack.tool", "x", "--", "--y", folder=tmp_path)
    pythons = subprocess.run(
        [sys.executable, "-m", "pack.tool", "x", "--y"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert '"spec": "pack.tool"' in ours.stdout
    assert ours.stdout == pythons.stdout
    assert ropewalk_alone("run", "-m", "pack", folder=tmp_path).stdout == "package pack\n"


def test_engine_and_workers_reach_the_script_through_the_environment(tmp_path: Path) -> None:
    write(tmp_path, "s.py", "import os; print(os.environ.get('ROPEWALK_ENGINE'), os.environ.get('ROPEWALK_WORKERS'))")
    assert ropewalk("run", "s.py", "--engine", "local", "--workers", "3", folder=tmp_path).stdout == "local 3\n"
    assert ropewalk("run", "s.py", folder=tmp_path).stdout == "None None\n"


def test_the_mode_of_programs_reaches_the_script_as_a_setting(tmp_path: Path) -> None:
    source = "from ropewalk import settings; s = settings.current(); print(s.mode, s.origin('mode'))"
    write(tmp_path, "s.py", source)
    threads = ropewalk("run", "s.py", "--mode", "threads", folder=tmp_path)
    assert threads.stdout == "threads environment ROPEWALK_MODE\n"
    assert ropewalk("run", "s.py", folder=tmp_path).stdout == "processes default\n"
    wrong = ropewalk("run", "s.py", "--mode", "thread", folder=tmp_path)
    assert wrong.returncode == 2 and wrong.stdout == ""
    assert "setting mode must be one of processes, threads, not 'thread' (from argument mode)" in wrong.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        *(("sys.exit(7)", 7), ("pass", 0), ("raise KeyError('k')", 1)),
        *(pytest.param(end, code, marks=pytest.mark.soak) for end, code in (("sys.exit()", 0), ("sys.exit('no')", 1))),
    ],
)
def test_the_exit_code_is_the_scripts_own(tmp_path: Path, ending: str, code: int) -> None:
    write(tmp_path, "s.py", f"import sys\n{ending}\n")
    assert ropewalk_alone("run", "s.py", folder=tmp_path).returncode == code


def test_a_traceback_has_no_frames_of_ours(tmp_path: Path) -> None:
    source = """
        def inner():
            raise ValueError("bad weather")
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("no walk today") from error
    """
    write(tmp_path, "s.py", source)
    ours = ropewalk_alone("run", "s.py", folder=tmp_path)
    pythons = subprocess.run(
        [sys.executable, tmp_path / "s.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert ours.returncode == 1 and "bad weather" in ours.stderr
    assert ours.stderr == pythons.stderr


@pytest.mark.parametrize(
    ("work", "raised"),
    [
        ("rw.Pool(2).map(divide, [1, 0])", "ZeroDivisionError"),
    ],
)
def test_what_a_worker_says_ends_with_the_scripts_line(tmp_path: Path, work: str, raised: str) -> None:
    source = f"import ropewalk as rw\ndef divide(x): return 1 // x\nif __name__ == '__main__':\n    {work}\n"
    write(tmp_path, "s.py", source)
    done = ropewalk("run", "s.py", folder=tmp_path, PATH="", DOCKER_HOST="unix:///none")
    assert done.returncode == 1
    trace = done.stderr.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    shown = [line for line in trace if line.startswith("  File ")]
    assert shown == [f'  File "{tmp_path}/s.py", line 4, in <module>'], done.stderr
    assert any(line.startswith(f"{raised}: ") for line in trace), done.stderr
    assert "helper.py" not in done.stderr
    assert "in divide" in done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--engine", "slurm"], "slurm"),
        (["--engine", "mpi"], "there is no mpiexec on the PATH"),
        (["--engine", "docker", "-o", "image=x"], "Docker"),
        (["--engine", "kubernetes", "-o", "image=x"], "kubernetes"),
        (["--engine", "ray", "-o", "auth=disabled", "-o", "address=127.0.0.1:1"], "no Ray answers at 127.0.0.1:1"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_a_mistake_of_configuration_ends_in_a_sentence(tmp_path: Path, given: list[str], words: str) -> None:
    """Without the commands, the daemon, the cluster or the package that the engine needs."""
    source = (
        "import ropewalk as rw\nif __name__ == '__main__':\n    with rw.Pool(2) as pool:\n        pool.map(abs, [1])\n"
    )
    write(tmp_path, "s.py", source)
    nothing = {"PATH": "", "DOCKER_HOST": "unix:///none", "KUBECONFIG": "", "HOME": str(tmp_path)}
    done = ropewalk("run", "s.py", *given, folder=tmp_path, **nothing)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr, done.stderr
    first = done.stderr.splitlines()[0]
    assert first.startswith("ropewalk run: ") and words.lower() in done.stderr.lower(), done.stderr
    assert f"({tmp_path}/s.py, line 3)" in done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--engine", "slurm", "-o", "partitio=x"], "did you mean partition?"),
        (["--engine", "kubernetes", "-o", "imag=x"], "did you mean image?"),
        (["--engine", "ssh"], "`hosts` is empty"),
        (["--engine", "ray", "-o", "auth=maybe"], "auth must be one of 'token', 'disabled'"),
        (["--engine", "dokcer"], "docker"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_an_option_that_makes_no_sense_is_refused_before_the_script_runs(
    tmp_path: Path, given: list[str], words: str
) -> None:
    write(tmp_path, "s.py", "print('it ran')\n")
    done = ropewalk("run", "s.py", *given, folder=tmp_path)
    assert done.returncode == 2 and "it ran" not in done.stdout
    assert words in done.stderr and "Traceback" not in done.stderr


def test_an_error_in_a_callback_shows_the_callback(tmp_path: Path) -> None:
    source = """
        import json
        import ropewalk as rw
        class Strange:
            def __reduce__(self):
                raise rw.errors.RopewalkError(json.dumps("not me"))
        rw.Pool(1).apply(id, (Strange(),))
    """
    write(tmp_path, "s.py", source)
    assert "in __reduce__" in ropewalk("run", "s.py", folder=tmp_path).stderr


def test_the_scripts_own_excepthook_is_used(tmp_path: Path) -> None:
    write(tmp_path, "s.py", "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0\n")
    done = ropewalk_alone("run", "s.py", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "hook ZeroDivisionError\n", "")


def test_threads_and_exit_handlers_still_find_their_main_module(tmp_path: Path) -> None:
    source = """
        import atexit, sys, threading, time
        WORD = "still here"
        def later():
            time.sleep(0.2)
            print(sys.modules["__main__"].WORD, flush=True)
        threading.Thread(target=later).start()
        atexit.register(lambda: print(sys.modules["__main__"].WORD))
    """
    write(tmp_path, "s.py", source)
    assert ropewalk_alone("run", "s.py", folder=tmp_path).stdout == "still here\nstill here\n"


# --- what cannot be run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian.py"], "there is no file trian.py; did you mean train.py?"),
        (["nowhere/train.py"], "there is no file nowhere/train.py; there is no folder nowhere either"),
        (["."], ". is a folder; name the Python file in it"),
        (["data.bin"], "data.bin is not Python source: it holds binary data"),
        (["words.txt"], "words.txt is not Python source (line 1: "),
        (["-m", "nowhere.at.all"], "there is no module nowhere.at.all"),
        (["-m", "train.py"], "-m takes a module's name without .py"),
        (["-m", "json"], "json is a package without a __main__ module"),
        ([], "name a file to run, or a module with -m"),
        ([""], "the name of the file is empty"),
        (["train.py", "--engine", "slrum"], "there is no engine 'slrum'; did you mean 'slurm'? There are "),
        (["train.py", "--seed", "3"], "options of the script go after --, as in ropewalk run FILE -- --seed"),
        (["--nproc-per-node", "2", "train.py"], "--nproc-per-node is an option of torchrun; give the number"),
        (["--nproc_per_node=2", "train.py"], "ropewalk run --ranks 2 FILE"),
        (["--nnodes", "2", "train.py"], "--nnodes is an option of torchrun, which is not needed: the engine"),
        (["train.py", "--workers"], "--workers of ropewalk run needs a value; an option of the script with this name "),
    ],
)
def test_what_cannot_be_run_is_said_with_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    write(tmp_path, "train.py", "print('ran')")
    write(tmp_path, "words.txt", "these are words\n")
    (tmp_path / "data.bin").write_bytes(bytes(range(256)))
    done = ropewalk("run", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_current_folder_that_was_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write(tmp_path, "train.py", "print('ran')")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for load, name in ((load_file, "../train.py"), (load_module, "train")):
        with pytest.raises(NotAProgram, match="the current folder was removed"):
            load(name)
    assert load_file(str(script)).path == str(script)


@pytest.mark.parametrize("workers", ["0", "-1", "many"])
def test_a_wrong_number_of_workers_is_refused(tmp_path: Path, workers: str) -> None:
    write(tmp_path, "train.py", "print('ran')")
    done = ropewalk("run", "train.py", "--workers", workers, folder=tmp_path)
    assert done.returncode == 2 and "--workers" in done.stderr and done.stdout == ""


def test_a_mistake_in_python_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    write(tmp_path, "s.py", "x = (\n")
    done = ropewalk("run", "s.py", folder=tmp_path)
    assert done.returncode == 1
    assert "line 1" in done.stderr and "SyntaxError: '(' was never closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_import_inside_a_module_is_the_scripts_error(tmp_path: Path) -> None:
    write(tmp_path, "pack/__init__.py", "import surely_not_installed")
    write(tmp_path, "pack/tool.py", "")
    done = ropewalk("run", "-m", "pack.tool", folder=tmp_path)
    assert done.returncode == 1
    assert "No module named 'surely_not_installed'" in done.stderr


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_signal_reaches_the_processes_of_a_script_that_catches_it(tmp_path: Path, number: signal.Signals) -> None:
    source = """
        import time, ropewalk as mp
        process = mp.Process(target=time.sleep, args=(40,))
        process.start()
        process.pid
        try:
            print("ready", flush=True)
            time.sleep(40)
        except KeyboardInterrupt:
            process.join()
            print(process.exitcode)
    """
    write(tmp_path, "s.py", source)
    with start_ropewalk("run", "s.py", folder=tmp_path) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
    assert output == "1\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_lets_the_script_clean_up(tmp_path: Path, number: signal.Signals, code: int) -> None:
    source = """
        import time
        try:
            print("ready", flush=True)
            time.sleep(40)
        finally:
            print("cleaned up", flush=True)
    """
    write(tmp_path, "s.py", source)
    with start_ropewalk("run", "s.py", folder=tmp_path) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert output == "cleaned up\n"
    assert "stopping" in errors and "to kill everything at once" in errors
    assert "KeyboardInterrupt" in errors and "ropewalk/cli" not in errors


WAITS = {
    "map": (
        "with rw.Pool(2) as pool: pool.map(work, range(1, 4), chunksize=1)",
        r"\n\d tasks? of pool-1 runs? \(work . in pool-1\..* for .*\), \d ha(s|ve) not begun, 0 done",
    ),
    "imap": (
        "with rw.Pool(1) as pool:\n    for _ in pool.imap(work, [0, 1]): pass",
        r"\n. tasks? of pool-1 runs?.*, . ha(s|ve) not begun, . done\n",
    ),
    "join of a pool": (
        "pool = rw.Pool(1); pool.map_async(work, [1]); pool.close(); pool.join()",
        "1 task of pool-1 runs .* 0 have not begun",
    ),
    "wait": (
        "program = rw.Program('demo'); program.add(rw.Worker(work, 1), name='actor'); program.launch().wait()",
        r"\nprogram 'demo' waited for the end of actor\.0\n",
    ),
    "join": (
        "process = rw.Process(target=work, args=(1,)); process.start(); process.join()",
        r"\nProcess-1 \(pid \d+\) still ran, and is interrupted too\n",
    ),
    "shutdown": ("with rw.Executor(1) as executor: executor.submit(work, 1)", "1 task of pool-1 runs"),
    "result": ("executor = rw.Executor(1); executor.submit(work, 1).result()", "KeyboardInterrupt"),
    "get": ("queue = rw.Queue(); queue.put(1); queue.get(); work(0); queue.get()", "queue.get"),
}


#: Each is a wait for an answer of a task: they say so by the same code as `map` and `shutdown`.
_SAY_THE_SAME = ("imap", "join of a pool", "result")


@pytest.mark.parametrize(
    "wait", [pytest.param(wait, marks=[pytest.mark.soak] * (wait in _SAY_THE_SAME)) for wait in WAITS]
)
def test_ctrl_c_ends_each_wait_and_says_what_was_waited_for(tmp_path: Path, wait: str) -> None:
    statement, words = WAITS[wait]
    source = f"""
import time, ropewalk as rw
def work(n):
    print("ready", flush=True)
    time.sleep(600 * n)
if __name__ == "__main__":
{textwrap.indent(statement, "    ")}
"""
    write(tmp_path, "s.py", source)
    with start_ropewalk("run", "s.py", folder=tmp_path) as process:
        assert process.stdout and "ready" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    told = errors.partition("KeyboardInterrupt")[0] if wait == "get" else errors
    assert re.search(words, told), errors
    # A program that its script waited for "still ran when the script ended, and nobody waited for it".
    assert "nobody waited" not in errors and "ropewalk/" not in errors


STUBBORN = """
    import signal, sys, time, types
    session = types.ModuleType("ropewalk.processes.open_sessions")
    def kill_all():
        print("all killed", flush=True)
        time.sleep({hang_s})
    session.kill_all = kill_all
    sys.modules[session.__name__] = session
    try:
        print("ready", flush=True)
        time.sleep(1000)
    except KeyboardInterrupt:
        print("asked", flush=True)
    try:
        time.sleep(1000)
    finally:
        print("must not be reached", flush=True)
"""


@pytest.mark.parametrize("hang_s", [0, 1000])
def test_the_second_signal_kills_at_once(tmp_path: Path, hang_s: int) -> None:
    write(tmp_path, "s.py", STUBBORN.format(hang_s=hang_s))
    with start_ropewalk("run", "s.py", folder=tmp_path) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)  # also when killing hangs
    assert process.returncode == 130
    assert output == "all killed\n"


def test_a_sigterm_that_comes_twice_at_once_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    # A batch system signals every process of a job, and the parent of a submitted script passes its own signal on: the
    # second one killed the script while it saved. `timeout` sends two as well.
    now, killed = 100.0, list[int]()
    monkeypatch.setattr(run, "kill_all_and_exit", killed.append)
    signals = run.Signals()
    monkeypatch.setattr(signals, "_signals", interrupts.EndSignals(clock=lambda: now))
    with pytest.raises(KeyboardInterrupt):
        signals._handle(signal.SIGTERM, None)  # pyright: ignore[reportPrivateUsage]
    now += 1.5
    signals._handle(signal.SIGTERM, None)  # pyright: ignore[reportPrivateUsage]
    assert not killed
    now += 1.5
    with contextlib.suppress(KeyboardInterrupt):  # in place of the end
        signals._handle(signal.SIGTERM, None)  # pyright: ignore[reportPrivateUsage]
    assert killed == [143]


def test_a_forked_child_has_the_usual_signals(tmp_path: Path) -> None:
    source = """
        import multiprocessing, time
        codes = set()
        for _ in range(30):  # the signal may come before the child has started properly
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(40,))
            process.start()
            process.terminate()
            process.join(120)
            codes.add(process.exitcode)
        print(codes)
    """
    write(tmp_path, "s.py", source)
    done = ropewalk_alone("run", "s.py", folder=tmp_path)
    assert (done.stdout, done.stderr) == ("{-15}\n", "")


def test_an_ignored_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    write(tmp_path, "s.py", "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)")
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "run", "s.py"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert done.stdout == "True\n"


# --- the command itself -----------------------------------------------------------------------------------------------


def test_the_version_is_shown() -> None:
    assert ropewalk("--version").stdout.startswith("ropewalk 0.")


def test_a_misspelt_command_is_answered_with_the_near_one() -> None:
    done = ropewalk("rnu")
    assert done.returncode == 2 and "'run'" in done.stderr


def test_importing_ropewalk_imports_nothing_of_the_command_line() -> None:
    program = "import sys, ropewalk; print(sorted({'rich', 'click', 'ropewalk.cli'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"


# --- the page -------------------------------------------------------------------------------------------------------


def test_page_is_there_while_the_script_runs(tmp_path: Path) -> None:
    write(
        tmp_path,
        "look.py",
        """
        import glob, os, psutil, sys
        pages = [child for child in psutil.Process().children() if "page" in child.cmdline()]
        print(len(pages), pages[0].pid)
        """,
    )
    ran = ropewalk_alone("run", "--page", "look.py", folder=tmp_path)
    assert "the page is at http://127.0.0.1:" in ran.stderr
    assert "token" not in ran.stderr.partition("; its address")[0]
    number, pid = ran.stdout.split()
    assert number == "1"
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(60.0)
