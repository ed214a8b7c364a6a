"""`ropewalk submit --launcher-restarts`: what a launcher that is killed leaves, and how the next one goes on from it.

In each script the launcher is killed once, with SIGKILL, in the middle of its work and mostly by one of its own
workers. The notes that the script writes say what ran how often; the result has to be that of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ropewalk.cli.launcher_restarts import describe_loss, is_lost
from ropewalk.tracking.store.opening import open_store
from tests.cli.command import environment, ropewalk
from tests.cli.pretend_cluster import installed
from tests.cli.test_submit import NAME, call, submit, wait_for
from tests.patience import PATIENCE_S, wait_until

PREAMBLE = """
    import os, signal, sys, time
    from pathlib import Path
    import psutil
    import ropewalk as rw

    HERE = Path({folder!r})

    def note(word):
        fd = os.open(HERE / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{{word}} {{os.getpid()}}\\n".encode())
        os.close(fd)

    def notes():
        return [line.split() for line in (HERE / "notes").read_text().splitlines()]

    def was_killed():
        return (HERE / "killed").exists()

    def kill_launcher():
        # The first time that it is called.
        try:
            os.close(os.open(HERE / "killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(int((HERE / "launcher").read_text()), signal.SIGKILL)
        time.sleep(60)  # until the agent ends this process

    def begin():
        if was_killed():
            alive = [pid for _, pid in notes() if psutil.pid_exists(int(pid))]
            print("left of the one before:", alive, flush=True)
        (HERE / "launcher").write_text(str(os.getpid()))
"""

POOL = """
    def square(number):
        if number == 12:
            kill_launcher()
        note(number)
        return number * number

    if __name__ == "__main__":
        begin()
        with rw.Pool(2) as pool:
            print("result", sum(pool.map(square, range(20), chunksize=1)))
"""
POPULATION = """
    import numpy as np
    from ropewalk.population import OpenAIES, evaluate

    def fitness(x):
        if not was_killed() and len(notes()) > 20:
            kill_launcher()
        note("evaluated")
        return -float(np.sum((x - 0.5) ** 2))

    if __name__ == "__main__":
        begin()
        note("begun")
        algorithm = OpenAIES(np.zeros(3), population=8, sigma=0.1, learning_rate=0.1, seed=1)
        with rw.Pool(2) as pool:
            run = evaluate(algorithm, fitness, pool, generations=5, checkpoint=HERE / "generations")
        print("result", run.best.tobytes().hex(), len(run.table))
"""
SEARCH = """
    from ropewalk.search import Choice, Search

    def train(run, x):
        saved = run.restore()
        total = saved.state["total"] if saved else 0
        for step in run.steps(4):
            if (x, step) == (2, 3):
                kill_launcher()
            total += x
            note(f"{x}.{step}")
            run.log(total=total)
            run.checkpoint({"total": total})

    if __name__ == "__main__":
        begin()
        search = Search(train, {"x": Choice([1, 2, 3])}, sampler="grid", metric="total", max_concurrent=1,
                        store=HERE / "runs.db")
        print("result", [(trial.state, trial.best) for trial in search.run()])
"""
PROGRAM = """
    class Summing:
        def __init__(self):
            self.step = self.total = 0

        def run(self):
            while self.step < 30 or not was_killed():
                self.step += 1
                self.total += self.step
                note(self.step)
                rw.checkpoint_here()
                if self.step >= 20 and list((HERE / "states").glob("*.checkpoint")):
                    kill_launcher()
                time.sleep(0.01)
            print("result", self.total == sum(range(self.step + 1)), flush=True)

        def state_dict(self):
            return {"step": self.step, "total": self.total}

        def load_state_dict(self, state):
            self.step, self.total = state["step"], state["total"]

    if __name__ == "__main__":
        begin()
        program = rw.Program("summing")
        program.add(rw.Service(Summing), checkpoint_s=0.01)
        program.launch(checkpoint=HERE / "states").wait()
"""
TRACKED = """
    if __name__ == "__main__":
        begin()
        with rw.track("counting", store=HERE / "runs.db", system=False) as run:
            saved = run.restore()
            total = saved.state["total"] if saved else 0
            for step in run.steps(6):
                if step == 4:
                    kill_launcher()
                total += step
                note(step)
                run.checkpoint({"total": total})
        with rw.track("counting", store=HERE / "runs.db", system=False) as run:
            run.log(again=1)
        print("result", total)
"""
TRAINER = """
    import torch
    from torch import nn

    def make_model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        return torch.randn(8, 4, generator=generator), torch.randint(2, (8,), generator=generator)

    if __name__ == "__main__":
        begin()
        folder = HERE / "trained"
        inline = HERE.name == "undisturbed"  # in one process: the result is the same, bit for bit
        trainer = rw.Trainer(
            make_model(), nn.CrossEntropyLoss(), lambda parameters: torch.optim.Adam(parameters, 1e-2),
            plan=2, schedule="gpipe", micro_batches=2, example_inputs=batch(0)[0], inline=inline,
        )
        with trainer:
            if folder.exists():
                trainer.load(folder)
            for step in range(trainer.num_steps, 4):
                if step == 2:
                    kill_launcher()
                trainer.step(*batch(step))
                note(step)
                trainer.save(folder).wait()
            weights = [tensor.flatten() for tensor in trainer.to_module().state_dict().values()]
        print("result", torch.cat(weights).numpy().tobytes().hex())
"""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A state folder of the test's own; what is still running at the end is killed."""
    yield {"XDG_STATE_HOME": str(tmp_path / "state")}
    for file in tmp_path.glob("state/ropewalk/runs/*/process.json"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(json.loads(file.read_text())["pid"], signal.SIGKILL)


def source_in(folder: Path, source: str) -> str:
    return textwrap.dedent(PREAMBLE).format(folder=str(folder)) + textwrap.dedent(source)


def result_of(printed: str) -> str:
    (line,) = [line for line in printed.splitlines() if "result " in line]
    return line.partition("result ")[2]


def killed_once(folder: Path, source: str, state: dict[str, str]) -> str:
    """Run a script that kills its launcher once; return its result."""
    run = submit(folder, source_in(folder, source), "--launcher-restarts", "2", **state)
    ended = Path(state["XDG_STATE_HOME"]) / "ropewalk/runs" / run / "ended.json"
    wait_until(ended.exists, what="the run ends")  # a command may not take as long as two launchers that import torch
    attached = call("attach", run, **state)
    assert attached.returncode == 0, attached.stdout + attached.stderr
    assert "ropewalk: the launcher was ended by SIGKILL, and starts again (1 of 2)" in attached.stdout
    assert attached.stdout.count("starts again") == 1
    assert "left of the one before: []" in attached.stdout
    return result_of(attached.stdout)


def undisturbed(folder: Path, source: str, state: dict[str, str]) -> str:
    """Run the same script in another folder, where nothing kills it; return its result."""
    other = folder / "undisturbed"
    other.mkdir()
    for name in ("killed", "notes"):
        (other / name).touch()
    (other / "script.py").write_text(source_in(other, source))
    done = ropewalk("run", "script.py", folder=other, **state)
    assert done.returncode == 0, done.stderr
    return result_of(done.stdout)


def noted(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "notes").read_text().splitlines()]


# --- the decision -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT])
def test_a_launcher_that_was_killed_is_lost_unless_it_was_to_end(number: int) -> None:
    assert is_lost(-number, was_asked=False)
    assert not is_lost(-number, was_asked=True), "`ropewalk stop` kills what does not end"


@pytest.mark.parametrize("code", [0, 1, 75, 143, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP])
def test_one_that_ended_by_itself_or_by_request_is_not_lost(code: int) -> None:
    assert not is_lost(code, was_asked=False)


def test_the_user_is_told_of_each_loss_and_of_the_last_one() -> None:
    assert describe_loss(-9, 0, 2) == "the launcher was ended by SIGKILL, and starts again (1 of 2)"
    assert describe_loss(-11, 1, 2) == "the launcher was ended by SIGSEGV, and starts again (2 of 2)"
    assert describe_loss(-9, 2, 2) == "the launcher was ended by SIGKILL, after 2 restarts (--launcher-restarts 2)"
    assert describe_loss(-40, 0, 1) == "the launcher was ended by signal 40, and starts again (1 of 1)"


# --- what runs comes to the same result -------------------------------------------------------------------------------


def test_a_pool_computes_its_tasks_again(tmp_path: Path, state: dict[str, str]) -> None:
    assert killed_once(tmp_path, POOL, state) == str(sum(number * number for number in range(20)))
    assert set(noted(tmp_path)) == {str(number) for number in range(20)}


def test_a_population_goes_on_with_its_generation(tmp_path: Path, state: dict[str, str]) -> None:
    assert killed_once(tmp_path, POPULATION, state) == undisturbed(tmp_path, POPULATION, state)
    words = noted(tmp_path)
    second = words.index("begun", 1)
    assert 20 <= second < 2 + 5 * 8 and len(words) - 1 - second <= 3 * 8, "two of five generations were complete"


def test_a_search_goes_on_with_the_trial_in_its_step(tmp_path: Path, state: dict[str, str]) -> None:
    assert killed_once(tmp_path, SEARCH, state) == "[('done', 4.0), ('done', 8.0), ('done', 12.0)]"
    assert sorted(noted(tmp_path)) == [f"{x}.{step}" for x in (1, 2, 3) for step in (1, 2, 3, 4)], "each step ran once"
    with open_store(tmp_path / "runs.db") as store:
        assert [run.state for run in store.runs(kind="search")] == ["done"]


def test_a_service_has_its_state_again(tmp_path: Path, state: dict[str, str]) -> None:
    assert killed_once(tmp_path, PROGRAM, state) == "True"
    steps = [int(word) for word in noted(tmp_path)]
    (second,) = [at for at in range(1, len(steps)) if steps[at] <= steps[at - 1]] or [len(steps)]
    assert second == len(steps) or steps[second] > 1, "it began anew"
    assert steps[-1] >= 30


def test_a_tracked_run_is_the_same_run_and_goes_on(tmp_path: Path, state: dict[str, str]) -> None:
    assert killed_once(tmp_path, TRACKED, state) == str(sum(range(1, 7)))
    assert noted(tmp_path) == ["1", "2", "3", "4", "5", "6"]
    with open_store(tmp_path / "runs.db") as store:
        runs = store.runs()
        assert [run.state for run in runs] == ["done", "done"]
        assert sorted([one.outcome for one in store.attempts(run.id)] for run in runs) == [["done"], ["lost", "done"]]


@pytest.mark.soak  # three launchers that import torch: 20 s of a CPU
def test_a_trainer_goes_on_from_its_checkpoint(tmp_path: Path, state: dict[str, str]) -> None:
    pytest.importorskip("torch")
    assert killed_once(tmp_path, TRAINER, state) == undisturbed(tmp_path, TRAINER, state)
    assert noted(tmp_path) == [str(step) for step in range(4)]


# --- what is restarted, and how often ---------------------------------------------------------------------------------


def test_a_script_that_fails_is_not_started_again(tmp_path: Path, state: dict[str, str]) -> None:
    run = submit(tmp_path, "print('begun', flush=True)\nraise ValueError\n", "--launcher-restarts", "3", **state)
    attached = call("attach", run, **state)
    assert attached.returncode == 1 and attached.stdout.count("begun") == 1


def test_a_run_that_is_stopped_is_not_started_again(tmp_path: Path, state: dict[str, str]) -> None:
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    run = submit(tmp_path, stubborn, "--launcher-restarts", "3", **state)
    wait_for("up", run, **state)
    call("stop", run, "--grace", "0.3", **state)
    printed = call("logs", run, **state).stdout
    assert printed.count("up") == 1 and "starts again" not in printed


def test_a_launcher_that_is_always_killed_ends_after_the_given_number_of_restarts(
    tmp_path: Path, state: dict[str, str]
) -> None:
    source = "import os, signal\nprint('begun', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    run = submit(tmp_path, source, "--launcher-restarts", "2", **state)
    attached = call("attach", run, **state)
    assert attached.returncode == 137
    assert attached.stdout.splitlines() == [
        "begun", "ropewalk: the launcher was ended by SIGKILL, and starts again (1 of 2)",
        "begun", "ropewalk: the launcher was ended by SIGKILL, and starts again (2 of 2)",
        "begun", "ropewalk: the launcher was ended by SIGKILL, after 2 restarts (--launcher-restarts 2)",
    ]  # fmt: skip
    assert call("ps", "--all", **state).stdout.count("ended with exit code 137") == 1


def test_processes_that_a_dead_launcher_has_left_are_killed_before_the_next_one_starts(tmp_path: Path) -> None:
    launcher = """
        import os, pathlib, signal, subprocess, sys
        import psutil
        left = pathlib.Path("left")
        if left.exists():
            print(psutil.pid_exists(int(left.read_text())))
        else:
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            left.write_text(str(child.pid))
            os.kill(os.getpid(), signal.SIGKILL)
    """
    (tmp_path / "launcher.py").write_text(textwrap.dedent(launcher))
    source = f"""
        import sys
        from ropewalk.cli.launcher_restarts import LauncherProcess
        sys.exit(LauncherProcess([sys.executable, "launcher.py"], {str(tmp_path)!r}, 1, grace_s=0.1).run())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


# --- on a cluster -----------------------------------------------------------------------------------------------------

ON_CLUSTER = """
    from ropewalk.engines import make_engine
    from ropewalk.engines.engine import JobSpec
    from ropewalk.processes.launcher_record import LauncherRecord

    RUN = "0123456789abcdef"
    if __name__ == "__main__":
        begin()
        engine = make_engine("pretend", {})
        if not was_killed():
            record = LauncherRecord(RUN, "pretend")  # as a session has it
            engine.submit(JobSpec(command=["sleep", "1000"]), 1, RUN, "agents")
            assert len(engine.find(RUN)) == 1
            note("submitted")
            kill_launcher()
        print("result", engine.find(RUN), engine.remains().get(RUN))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    yield installed(tmp_path)
    for file in tmp_path.glob("queue/*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(file.read_text()), signal.SIGKILL)


def test_jobs_of_a_dead_launcher_are_cancelled_before_the_next_one_starts(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    source = source_in(tmp_path, ON_CLUSTER)
    run = submit(tmp_path, source, "--engine", "pretend", "--code", "shared", "--launcher-restarts", "1", **cluster)
    attached = call("attach", run, **cluster)
    assert attached.returncode == 0, attached.stdout + attached.stderr
    assert result_of(attached.stdout) == "[] None"
    assert NAME in run


HARNESS = """
import sys
from ropewalk.cli.launcher_restarts import LauncherProcess
launcher = LauncherProcess(["sleep", "600"], "/", 1)
print(launcher.run(lambda pid: print(pid, flush=True)), flush=True)
"""


def test_a_signal_that_comes_when_the_launcher_has_just_ended_is_no_error() -> None:
    # A cluster sends SIGTERM to all processes of a job at once. The handler here waited for the launcher, which had
    # ended already, and then there was no process to wait for: the run ended with a traceback.
    with subprocess.Popen([sys.executable, "-c", HARNESS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(parent.pid).status() == psutil.STATUS_STOPPED)
        child.send_signal(signal.SIGTERM)
        wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE)
        parent.send_signal(signal.SIGTERM)
        parent.send_signal(signal.SIGCONT)
        assert parent.stdout.read() == f"{128 + signal.SIGTERM}\n"
    assert parent.returncode == 0


AGAIN = """
import os, signal, sys
from ropewalk.cli import launcher_restarts

block = signal.pthread_sigmask
num_blocked = 0

def block_late(how, numbers):
    global num_blocked
    num_blocked += how == signal.SIG_BLOCK
    if num_blocked == 2 and how == signal.SIG_BLOCK:
        os.kill(os.getpid(), signal.SIGTERM)  # the first one has ended, and the second one does not exist yet
    return block(how, numbers)

signal.pthread_sigmask = block_late
once = "import os, time; os.path.exists('killed') or (open('killed', 'w'), os.kill(os.getpid(), 9)); time.sleep(600)"
command = [sys.executable, "-c", once]
print(launcher_restarts.LauncherProcess(command, os.getcwd(), 1, grace_s=0.1).run(), flush=True)
"""


def test_a_launcher_that_is_started_again_while_its_end_is_asked_for_is_asked_too(tmp_path: Path) -> None:
    # The signal was passed on to nobody, and the next launcher ran on.
    again = [sys.executable, "-c", AGAIN]
    done = subprocess.run(again, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.splitlines()[-1] == str(128 + signal.SIGTERM), done.stdout + done.stderr


FULL = """
import os, sys
from ropewalk.cli.launcher_restarts import LauncherProcess
once = "import os; os.path.exists('killed') or (open('killed', 'w'), os.kill(os.getpid(), 9))"
command = [sys.executable, "-c", once]
sys.exit(LauncherProcess(command, os.getcwd(), 1, grace_s=0.1).run())
"""


def test_a_launcher_whose_output_has_no_room_is_started_again(tmp_path: Path) -> None:
    # It was to be told that it starts again, and that could not be written.
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", FULL],
            cwd=tmp_path,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert "Traceback" not in done.stderr and done.returncode in (0, 120), done.stderr
