"""What every engine has to do, as a suite that any engine can be put through.

    class TestMyEngine(EngineConformance):          # pytest runs its methods; pytest is not needed to import this
        def make_engine(self) -> Engine:
            return MyEngine(...)

Each method starts real jobs on the engine and ends them again. They are small
Python programs, so the engine's hosts need a Python; see `python`. An engine of
a cluster may take long to start a job: raise `patience_s`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence

from ropewalk.engines.engine import Engine, JobSpec, JobState, JobStatus
from ropewalk.errors import EngineError

_SECRET = "conformance-secret-5f2c"
_OVER = (JobState.ENDED, JobState.LOST)


class EngineConformance:
    """The suite. Subclass it, say how your engine is made, and let pytest or a loop over `tests()` call the methods."""

    python: str = sys.executable
    """A Python interpreter on the engine's hosts."""
    patience_s: float = 30.0
    """How long the engine may take to start or to end a job."""
    num_jobs: int = 40
    """How many jobs `test_many_jobs_at_once` submits."""

    def make_engine(self) -> Engine:
        """A new engine; called for each test."""
        raise NotImplementedError("an engine's conformance class says here how its engine is made")

    @classmethod
    def tests(cls) -> list[str]:
        """The names of the suite's methods."""
        return sorted(name for name in dir(cls) if name.startswith("test_"))

    # What is handed over

    def test_a_job_runs_its_command_and_its_output_is_kept(self) -> None:
        """`logs` holds stdout and stderr; arguments arrive as they are, with spaces and quotes."""
        with self._engine() as (engine, run):
            text = "two words 'and' \"quotes\" $HOME ; *"
            id = engine.submit(
                self._spec("import sys; print(sys.argv[1]); print('!', file=sys.stderr)", text), 1, run, "a"
            )[0]
            status = self._wait_until_over(engine, id)
            assert status == JobStatus(JobState.ENDED, 0, status.reason), f"exit code 0 was expected, not {status}"
            logs = self._wait_for(lambda: (lambda said: said if "!" in said else "")(engine.logs(id)), "the output")
            assert text in logs, f"the arguments arrived differently: {logs!r}"

    def test_stdin_is_handed_over_whole_and_ends(self) -> None:
        """Secrets travel on it, so it must arrive byte for byte, and end, however long it is."""
        with self._engine() as (engine, run):
            code = "import sys, hashlib; d = sys.stdin.buffer.read(); print(len(d), hashlib.sha256(d).hexdigest()[:8])"
            for request, data in (("none", b""), ("short", b"\x00\xff secret\n"), ("long", bytes(range(256)) * 2000)):
                id = engine.submit(self._spec(code, stdin=data), 1, run, request)[0]
                self._wait_until_over(engine, id)
                logs = self._wait_for(lambda id=id: engine.logs(id), "the output")
                assert logs.startswith(f"{len(data)} "), f"{len(data)} bytes were sent; the job says {logs!r}"

    def test_a_job_that_does_not_read_its_stdin_holds_up_nobody(self) -> None:
        """`submit` returns although nobody reads the megabyte."""
        with self._engine() as (engine, run):
            id = engine.submit(self._spec("import time; time.sleep(600)", stdin=bytes(1 << 20)), 1, run, "a")[0]
            engine.cancel([id])
            self._wait_until_over(engine, id)

    def test_the_environment_is_set_and_names_the_run(self) -> None:
        """`JobSpec.environment` comes on top, and ROPEWALK_RUN_ID says which run a job belongs to."""
        with self._engine() as (engine, run):
            code = "import os; print(os.environ['CONFORMANCE'], os.environ['ROPEWALK_RUN_ID'], 'PATH' in os.environ)"
            id = engine.submit(self._spec(code, environment={"CONFORMANCE": "a b=$c"}), 1, run, "a")[0]
            self._wait_until_over(engine, id)
            logs = self._wait_for(lambda: engine.logs(id), "the output")
            assert logs.strip() == f"a b=$c {run} True"

    # Ids and states

    def test_submit_is_idempotent(self) -> None:
        """The same run and request: the same ids, and nothing new runs. Another request or run: new jobs."""
        with self._engine() as (engine, run):
            spec = self._spec("import time; time.sleep(600)")
            first = engine.submit(spec, 2, run, "a")
            assert engine.submit(spec, 2, run, "a") == first
            assert sorted(engine.find(run)) == sorted(first), "the second call must not start anything"
            second = engine.submit(spec, 1, run, "b")
            assert not set(second) & set(first)
            engine.cancel(first)
            assert engine.submit(spec, 2, run, "a") == first, "also after they have ended"

    def test_ids_are_unique_for_as_long_as_the_engine_lives(self) -> None:
        """Also when jobs end and their process numbers are given out again."""
        with self._engine() as (engine, run):
            ids: list[str] = []
            for round in range(3):
                ids += engine.submit(self._spec("pass"), 3, run, str(round))
                for id in ids[-3:]:
                    self._wait_until_over(engine, id)
            assert len(set(ids)) == 9, f"ids were given out twice: {ids}"

    def test_poll_knows_all_states_in_one_call(self) -> None:
        """PENDING or RUNNING, then ENDED; LOST for what it has never heard of; an empty question is fine."""
        with self._engine() as (engine, run):
            over = engine.submit(self._spec("pass"), 1, run, "over")[0]
            self._wait_until_over(engine, over)
            alive = engine.submit(self._spec("import time; time.sleep(600)"), 1, run, "alive")[0]
            states = engine.poll([alive, over, "no-such-job"])
            assert list(states) == [alive, over, "no-such-job"]
            assert states[alive].state in (JobState.PENDING, JobState.RUNNING)
            assert states[alive].exit_code is None
            assert states[over].state is JobState.ENDED
            assert states["no-such-job"].state is JobState.LOST
            assert engine.poll([]) == {}
            self._wait_for(lambda: engine.poll([alive])[alive].state is JobState.RUNNING, "the job to run")

    def test_exit_codes_and_signals_are_told_as_documented(self) -> None:
        """0, a number, and minus the number of the signal; the same each time they are asked for."""
        with self._engine() as (engine, run):
            for code, expected in (
                ("pass", 0),
                ("raise SystemExit(7)", 7),
                ("1/0", 1),
                ("import os; os.kill(os.getpid(), 9)", -9),
                ("import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", -15),
            ):
                id = engine.submit(self._spec(code), 1, run, code)[0]
                assert self._wait_until_over(engine, id).exit_code == expected, f"{code!r} ends with {expected}"
                assert engine.poll([id])[id].exit_code == expected

    def test_many_jobs_at_once(self) -> None:
        """They all run, one `poll` asks for all, and each is told its own end."""
        with self._engine() as (engine, run):
            groups = {code: engine.submit(self._spec(f"raise SystemExit({code})"), self.num_jobs // 4, run, str(code))
                      for code in range(4)}  # fmt: skip
            ids = [id for group in groups.values() for id in group]
            assert len(set(ids)) == self.num_jobs // 4 * 4
            self._wait_for(lambda: all(s.state in _OVER for s in engine.poll(ids).values()), "all jobs to end")
            for code, group in groups.items():
                assert {status.exit_code for status in engine.poll(group).values()} == {code}

    # Finding and ending

    def test_find_knows_the_jobs_of_a_run_that_have_not_ended(self) -> None:
        """Those, and no others."""
        with self._engine() as (engine, run), self._cleaned(engine, f"{run}-other"):
            spec = self._spec("import time; time.sleep(600)")
            mine = engine.submit(spec, 2, run, "a")
            engine.submit(spec, 1, f"{run}-other", "a")
            assert sorted(engine.find(run)) == sorted(mine)
            engine.cancel(mine[:1])
            self._wait_until_over(engine, mine[0])
            assert engine.find(run) == mine[1:]
            assert engine.find("no-such-run") == []

    def test_cancel_ends_jobs_at_once_and_may_be_repeated(self) -> None:
        """Also jobs that ignore polite signals; what has ended or is unknown is passed over, and keeps its code."""
        with self._engine() as (engine, run):
            over = engine.submit(self._spec("raise SystemExit(3)"), 1, run, "over")[0]
            self._wait_until_over(engine, over)
            code = (
                "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; print('up', flush=True)"
            )
            stubborn = engine.submit(self._spec(f"{code}; time.sleep(600)"), 1, run, "stubborn")[0]
            self._wait_for(lambda: "up" in engine.logs(stubborn), "the job to be up")
            for _ in range(2):
                engine.cancel([over, stubborn, "no-such-job"])
            status = self._wait_until_over(engine, stubborn)
            assert status.exit_code != 0
            assert engine.poll([over])[over].exit_code == 3
            engine.cancel([])

    def test_what_a_job_started_ends_with_it(self) -> None:
        """Both when it is cancelled and when it ends by itself; also what left its process group."""
        child = "import time; print('child', flush=True); time.sleep(600)"
        start = (
            "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {!r}], start_new_session={}); "
        )
        say = "print('pid', p.pid, flush=True); "
        for new_session, end in ((False, "time.sleep(600)"), (True, "time.sleep(600)"), (False, "time.sleep(0.5)")):
            with self._engine() as (engine, run):
                id = engine.submit(self._spec(start.format(child, new_session) + say + end), 1, run, "a")[0]
                logs = self._wait_for(
                    lambda engine=engine, id=id: (lambda said: said if "pid" in said and "child" in said else "")(
                        engine.logs(id)
                    ),
                    "the job's child to be up",
                )
                pid = int(logs.split("pid ")[1].split()[0])
                if end == "time.sleep(600)":
                    engine.cancel([id])
                self._wait_until_over(engine, id)
                if self._sees_processes():
                    self._wait_for(lambda pid=pid: not _is_alive(pid), f"process {pid}, started by the job, to end")

    def test_a_command_that_does_not_exist_is_an_error(self) -> None:
        """`EngineError` where the engine can tell at once; else the job ends with a code that is not 0."""
        with self._engine() as (engine, run):
            ids: list[str] = []
            refusal = ""
            try:
                ids = engine.submit(JobSpec(command=["/no/such/program-5f2c"]), 2, run, "a")
            except EngineError as error:
                refusal = str(error)
            assert ids or "program-5f2c" in refusal, f"the error must name the command: {refusal}"
            assert ids or engine.find(run) == [], "all or none: nothing may be left running"
            for id in ids:
                assert self._wait_until_over(engine, id).exit_code != 0

    # Words

    def test_logs_are_text_of_limited_size_whatever_a_job_prints(self) -> None:
        """Bytes that are no text do not hurt; the end of the output is what is kept; unknown jobs have none."""
        with self._engine() as (engine, run):
            code = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe' + b'x' * 1000000 + b'the end')"
            id = engine.submit(self._spec(code), 1, run, "a")[0]
            self._wait_until_over(engine, id)
            self._wait_for(lambda: engine.logs(id).rstrip().endswith("the end"), "the end of the output")
            assert len(engine.logs(id)) <= 1_000_100
            assert engine.logs("no-such-job") == ""

    def test_render_shows_the_job_and_no_secret_and_starts_nothing(self) -> None:
        """What would be sent, for people and for tests."""
        with self._engine() as (engine, run):
            spec = self._spec("print(1)", stdin=_SECRET.encode(), environment={"CONFORMANCE": "shown"})
            text = engine.render(spec)
            assert "print(1)" in text and "shown" in text, f"it does not show the job: {text}"
            assert _SECRET not in text, "stdin holds secrets and must not be rendered"
            assert text == engine.render(spec)
            assert engine.find(run) == []

    def test_check_says_what_it_looked_at(self) -> None:
        """For `ropewalk doctor`: every finding has words."""
        with self._engine() as (engine, _):
            for finding in engine.check():
                assert finding.what and finding.detail
                assert finding.ok in (True, False)

    def test_close_may_be_repeated_and_ends_no_job(self) -> None:
        """What is closed is the engine, not the work."""
        with self._engine() as (engine, run):
            id = engine.submit(self._spec("import time; time.sleep(600)"), 1, run, "a")[0]
            over = engine.submit(self._spec("pass"), 1, run, "b")[0]
            self._wait_until_over(engine, over)
            engine.close()
            engine.close()
            assert engine.poll([id])[id].state not in _OVER
            assert isinstance(engine.logs(over), str)

    # Means

    def _spec(
        self, code: str, *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None
    ) -> JobSpec:
        command: Sequence[str] = [self.python, "-c", code, *arguments]
        return JobSpec(command=command, name="ropewalk-conformance", stdin=stdin, environment=environment or {})

    @contextlib.contextmanager
    def _engine(self) -> Generator[tuple[Engine, str]]:
        engine = self.make_engine()
        run = f"conformance-{os.urandom(4).hex()}"
        with self._cleaned(engine, run):
            yield engine, run

    @contextlib.contextmanager
    def _cleaned(self, engine: Engine, run: str) -> Generator[None]:
        try:
            yield
        finally:
            ids = engine.find(run)
            engine.cancel(ids)
            for id in ids:
                self._wait_until_over(engine, id)
            engine.close()

    def _wait_until_over(self, engine: Engine, id: str) -> JobStatus:
        self._wait_for(lambda: engine.poll([id])[id].state in _OVER, f"job {id} to end")
        return engine.poll([id])[id]

    def _wait_for(self, condition: Callable[[], object], what: str) -> str:
        deadline = time.monotonic() + self.patience_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"waited {self.patience_s:g} s for {what}"
            time.sleep(0.01)
        return value if isinstance(value, str) else ""

    def _sees_processes(self) -> bool:
        """Whether jobs run on this machine; override it for an engine of other hosts that runs here in a test."""
        return self.make_engine().name == "local"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"  # a zombie is its new parent's affair
    except (ProcessLookupError, FileNotFoundError):
        return False
