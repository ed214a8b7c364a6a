"""The conformance suite of engines.

    class TestMyEngine(EngineConformance):          # pytest runs its methods; pytest is not needed to import this
        engine_name = "mine"

        def engine_options(self) -> Mapping[str, object]:
            return {"queue": "tests"}

Each method starts real jobs on the engine and ends them again. They are small Python programs, so the engine's hosts
need a Python; see `python`. If a cluster takes long to start a job, raise `patience_s`. `EngineUnderTest` has all
settings of the suite.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import secrets
import socket
import threading
import unittest

from ropewalk.engines.engine import JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError, SettingsError
from ropewalk.testing.engine_under_test import (
    OVER,
    CommandLineWatch,
    EngineUnderTest,
    new_run,
    processes_of,
    secrets_in_environment,
)

_MANY_CPUS = 1e6
_ECHO = """
import os, socket
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(os.environ["ROPEWALK_DOOR"])
    listener.listen()
    while True:
        peer, _ = listener.accept()
        while data := peer.recv(65536):
            peer.sendall(data[::-1])
"""


class EngineConformance(EngineUnderTest):
    """The suite: subclass it, say how your engine is made, and run it by pytest or with the tests of `all_tests()`."""

    # Input and output

    def test_a_job_runs_its_command_and_its_output_is_kept(self) -> None:
        """`logs` has stdout and stderr; arguments arrive unchanged, with spaces and quotes."""
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
        """Secrets are passed on the standard input, so it must arrive byte for byte, and end, at any length."""
        with self._engine() as (engine, run):
            code = "import sys, hashlib; d = sys.stdin.buffer.read(); print(len(d), hashlib.sha256(d).hexdigest()[:8])"
            for request, data in (("none", b""), ("short", b"\x00\xff secret\n"), ("long", bytes(range(256)) * 2000)):
                id = engine.submit(self._spec(code, stdin=data), 1, run, request)[0]
                self._wait_until_over(engine, id)
                logs = self._wait_for(lambda id=id: engine.logs(id), "the output")
                assert logs.startswith(f"{len(data)} "), f"{len(data)} bytes were sent; the job says {logs!r}"

    def test_a_job_that_does_not_read_its_stdin_holds_up_nobody(self) -> None:
        """`submit` returns although the job does not read the megabyte."""
        with self._engine() as (engine, run):
            id = engine.submit(self._spec("import time; time.sleep(600)", stdin=bytes(1 << 20)), 1, run, "a")[0]
            engine.cancel([id])
            self._wait_until_over(engine, id)

    def test_the_environment_is_set_and_names_the_run(self) -> None:
        """`JobSpec.environment` is added, and ROPEWALK_RUN_ID names the run of a job."""
        with self._engine() as (engine, run):
            code = "import os; print(os.environ['CONFORMANCE'], os.environ['ROPEWALK_RUN_ID'], 'PATH' in os.environ)"
            id = engine.submit(self._spec(code, environment={"CONFORMANCE": "a b=$c"}), 1, run, "a")[0]
            self._wait_until_over(engine, id)
            logs = self._wait_for(lambda: engine.logs(id), "the output")
            assert logs.strip() == f"a b=$c {run} True"

    # Ids and states

    def test_submit_is_idempotent(self) -> None:
        """The same run and request give the same ids and start nothing; another request or run gives new jobs."""
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
        """This holds also if jobs end and their process numbers are reused."""
        with self._engine() as (engine, run):
            ids: list[str] = []
            for round in range(3):
                ids += engine.submit(self._spec("pass"), 3, run, str(round))
                for id in ids[-3:]:
                    self._wait_until_over(engine, id)
            assert len(set(ids)) == 9, f"ids were given out twice: {ids}"

    def test_poll_knows_all_states_in_one_call(self) -> None:
        """A job is PENDING or RUNNING, then ENDED; an unknown id is LOST; an empty list of ids is allowed."""
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
        """The code is 0, a number, or minus the number of the signal, and the same at each poll."""
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

    def test_jobs_of_one_request_are_jobs_of_their_own(self) -> None:
        """Each job has its own id, output and end; ending one does not affect the others."""
        with self._engine() as (engine, run):
            code = "import time, uuid; print('I am', uuid.uuid4(), flush=True); time.sleep(600)"
            ids = engine.submit(self._spec(code), 3, run, "a")
            assert len(set(ids)) == 3
            assert sorted(engine.find(run)) == sorted(ids)
            self._wait_for(lambda: all("I am" in engine.logs(id) for id in ids), "all jobs to be up")
            assert len({engine.logs(id) for id in ids}) == 3, "each has an output of its own"
            engine.cancel(ids[1:2])
            self._wait_until_over(engine, ids[1])
            assert {engine.poll(ids)[id].state for id in (ids[0], ids[2])} == {JobState.RUNNING}
            assert sorted(engine.find(run)) == sorted((ids[0], ids[2]))
            assert "I am" in engine.logs(ids[1]), "the output of a job is kept when it has ended"

    def test_many_jobs_at_once(self) -> None:
        """All jobs run, one `poll` returns all, and each has its own end."""
        with self._engine() as (engine, run):
            groups = {code: engine.submit(self._spec(f"raise SystemExit({code})"), self.num_jobs // 4, run, str(code))
                      for code in range(4)}  # fmt: skip
            ids = [id for group in groups.values() for id in group]
            assert len(set(ids)) == self.num_jobs // 4 * 4
            self._wait_for(lambda: all(s.state in OVER for s in engine.poll(ids).values()), "all jobs to end")
            for code, group in groups.items():
                assert {status.exit_code for status in engine.poll(group).values()} == {code}

    # Finding and ending

    def test_find_knows_the_jobs_of_a_run_that_have_not_ended(self) -> None:
        """`find` returns these jobs and no others."""
        with self._engine() as (engine, run), self._cleaned(engine, f"{run}-other"):
            spec = self._spec("import time; time.sleep(600)")
            mine = engine.submit(spec, 2, run, "a")
            engine.submit(spec, 1, f"{run}-other", "a")
            assert sorted(engine.find(run)) == sorted(mine)
            engine.cancel(mine[:1])
            self._wait_until_over(engine, mine[0])
            assert engine.find(run) == mine[1:]
            assert engine.find("no-such-run") == []

    def test_a_job_that_is_asked_to_end_may_do_so_in_its_own_way(self) -> None:
        """`ask_to_end` sends SIGTERM, if it can; an engine that ends the job with it may forget the exit code."""
        with self._engine() as (engine, run):
            code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "
            id = engine.submit(self._spec(f"{code}print('up', flush=True); time.sleep(600)"), 1, run, "a")[0]
            self._wait_for(lambda: "up" in engine.logs(id), "the job to be up")
            if engine.ask_to_end([id], 20.0):
                self._wait_for(lambda: engine.find(run) == [], "the job to end")
                assert engine.poll([id])[id].exit_code in (5, None)

    def test_cancel_ends_jobs_at_once_and_may_be_repeated(self) -> None:
        """This includes jobs that ignore SIGTERM; ended and unknown jobs are ignored, and keep their exit code."""
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
        """This holds if the job is cancelled or ends by itself, also for processes that left its process group."""
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
                if end == "time.sleep(600)":
                    engine.cancel([id])
                self._wait_until_over(engine, id)
                self._wait_for(lambda run=run: not processes_of(run), f"what the job started to end: {logs}")

    def test_a_command_that_does_not_exist_is_an_error(self) -> None:
        """`submit` raises `EngineError` if the engine knows at once; else the job ends with a code that is not 0."""
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

    # Texts

    def test_logs_are_text_of_limited_size_whatever_a_job_prints(self) -> None:
        """Bytes that are not text do no harm; the end of the output is kept; unknown jobs have no output."""
        with self._engine() as (engine, run):
            code = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe' + b'x' * 1000000 + b'the end')"
            id = engine.submit(self._spec(code), 1, run, "a")[0]
            self._wait_until_over(engine, id)
            self._wait_for(lambda: engine.logs(id).rstrip().endswith("the end"), "the end of the output")
            assert len(engine.logs(id)) <= 1_000_100
            assert engine.logs("no-such-job") == ""

    def test_render_shows_the_job_and_no_secret_and_starts_nothing(self) -> None:
        """`render` returns the request that would be sent, for users and for tests."""
        with self._engine() as (engine, run):
            secret = secrets.token_hex()
            spec = self._spec("print(1)", stdin=secret.encode(), environment={"CONFORMANCE": "shown"})
            text = engine.render(spec)
            assert "print(1)" in text and "shown" in text, (
                f"it does not show the command, or the variable CONFORMANCE=shown of its environment: {text}"
            )
            assert secret not in text, "stdin holds secrets and must not be rendered"
            assert text == engine.render(spec)
            assert engine.find(run) == []

    def test_check_says_what_it_looked_at(self) -> None:
        """Every finding has a text, for `ropewalk doctor`."""
        with self._engine() as (engine, _):
            for finding in engine.check():
                assert finding.what and finding.detail
                assert finding.ok in (True, False)

    def test_close_may_be_repeated_and_ends_no_job(self) -> None:
        """`close` releases the engine and leaves its jobs running."""
        with self._engine() as (engine, run):
            id = engine.submit(self._spec("import time; time.sleep(600)"), 1, run, "a")[0]
            over = engine.submit(self._spec("pass"), 1, run, "b")[0]
            self._wait_until_over(engine, over)
            engine.close()
            engine.close()
            assert engine.poll([id])[id].state not in OVER
            assert isinstance(engine.logs(over), str)

    def test_a_job_ends_when_its_time_is_over(self) -> None:
        """`reason` then says that the time limit was reached."""
        if self.time_limit_s is None:
            raise unittest.SkipTest("no time limit was named that this engine can keep to in a test")
        with self._engine() as (engine, run):
            spec = dataclasses.replace(self._spec("import time; time.sleep(600)"), time_limit_s=self.time_limit_s)
            id = engine.submit(spec, 1, run, "a")[0]
            status = self._wait_until_over(engine, id)
            assert status.exit_code != 0, f"it did not end by itself: {status}"
            assert "time" in status.reason.lower() or "deadline" in status.reason.lower(), f"no word of it: {status}"

    # Failures

    def test_a_job_taken_away_from_outside_is_reported_with_words(self) -> None:
        """A job whose process or machine was killed is over within a time limit, and `reason` says what is known."""
        with self._engine() as (engine, run):
            code = "import time; print('up', flush=True); time.sleep(600)"
            lost, kept = engine.submit(self._spec(code), 2, run, "a")
            self._wait_for(lambda: all("up" in engine.logs(id) for id in (lost, kept)), "the jobs to be up")
            self.lose(engine, lost)
            self._wait_for(
                lambda: engine.poll([lost])[lost].state in OVER, "the engine to see that a job is lost", self.lost_s
            )
            status = engine.poll([lost])[lost]
            assert status.exit_code != 0, f"it was taken away, which is not success: {status}"
            assert status.reason, f"how a job was lost should be said in words: {status}"
            assert lost not in engine.find(run)
            assert engine.poll([kept])[kept].state is JobState.RUNNING, "the other job has nothing to do with it"

    def test_jobs_of_a_killed_launcher_end_or_are_found(self) -> None:
        """Within a time limit its jobs are gone, or another process finds them by `runs`, and can end them."""
        run = new_run()
        other = self._bounded_engine()
        with self._cleaned(other, run):
            with self._launcher(run) as (process, ids):
                assert process.stdin
                process.stdin.write("die\n")
                process.stdin.flush()
                process.wait(self.patience_s)
            self._wait_for(
                lambda: run in other.runs() or not processes_of(run),
                lambda: f"the jobs to end, or to be found: {processes_of(run)}",
            )
            found = other.runs().get(run, [])
            if found:
                assert sorted(found) == sorted(ids), "the ids are those that the launcher was given"
                assert sorted(other.find(run)) == sorted(ids)
                assert {other.poll([id])[id].state for id in ids} <= {JobState.PENDING, JobState.RUNNING}
                other.cancel(ids)
            self._wait_for(
                lambda: run not in other.runs() and not processes_of(run),
                lambda: f"the jobs to end: {other.runs()}, {processes_of(run)}",
            )
            assert {other.poll([id])[id].state for id in ids} <= set(OVER)
            self._wait_for(lambda: not self.leftovers(), lambda: f"this to be removed: {self.leftovers()}")

    def test_runs_tells_which_runs_have_jobs(self) -> None:
        """`runs` agrees with `find`, or is empty if the engine's jobs end with their launcher."""
        with self._engine() as (engine, run):
            ids = engine.submit(self._spec("import time; time.sleep(600)"), 2, run, "a")
            self._wait_for(lambda: engine.poll(ids[:1])[ids[0]].state is JobState.RUNNING, "a job to run")
            assert sorted(engine.runs().get(run, ids)) == sorted(ids)
            engine.cancel(ids)
            self._wait_for(lambda: run not in engine.runs(), "the run to have no jobs")

    def test_no_secret_can_be_read_by_others(self) -> None:
        """The standard input is in no command line, not even for a moment, and in no environment, text or log."""
        secret = secrets.token_hex()
        watch = CommandLineWatch(self.visible_command_lines, secret)
        watch.start()
        try:
            with self._engine() as (engine, run):
                spec = self._spec(
                    "import sys, time; print(len(sys.stdin.read()), flush=True); time.sleep(600)", stdin=secret.encode()
                )
                id = engine.submit(spec, 1, run, "a")[0]
                self._wait_for(lambda: str(len(secret)) in engine.logs(id), "the job to have read its secret")
                assert secrets_in_environment(run, secret) == []
                assert secret not in engine.logs(id) + engine.poll([id])[id].reason + engine.render(spec)
        finally:
            watch.stop()
        assert not watch.seen, f"the secret stood in a command line: {watch.seen}"

    def test_bad_options_are_refused_by_name(self) -> None:
        """`SettingsError` names the option and the engine's options, before any request to the cluster."""
        engine = self.make_engine()
        engine.close()
        refusal = ""
        try:
            type(engine)({"no_such_option": "1"})  # pyright: ignore[reportCallIssue] - as `make_engine` calls it
        except SettingsError as error:
            refusal = str(error)
        assert refusal, "an option that does not exist was accepted"
        assert "no_such_option" in refusal and engine.name in refusal, f"it should name both: {refusal}"

    # Capacities and addresses

    def test_capacities_and_addresses_make_sense(self) -> None:
        """`per_job`, `most_jobs`, `places` and `hosts` give numbers from 1, addresses to dial, or clear errors."""
        with self._engine() as (engine, _):
            per_job = engine.per_job(Resources())
            assert per_job is None or per_job >= 1
            most: int | None = None
            refusal = "cpu"
            try:
                most = engine.per_job(Resources(cpus=_MANY_CPUS))
            except EngineError as error:
                refusal = str(error)
            assert most is None or most >= 1
            assert "cpu" in refusal.lower(), f"it should say what is too much: {refusal}"
            most_jobs = engine.most_jobs()
            assert most_jobs is None or most_jobs >= 1
            places = engine.places()
            assert places is None or (places.rooms and places.words), "hosts that are fixed have names"
            assert places is None or per_job == max(room.holds(Resources()) for room in places.rooms.values())
            for host in engine.hosts():
                address = ipaddress.ip_address(host)
                assert not address.is_unspecified and not address.is_multicast, f"nobody can be reached at {host}"
            assert engine.reach is not Reach.HERE or not engine.hosts(), "there is no network in between"

    def test_a_door_leads_to_the_job(self) -> None:
        """An engine that carries connections has a door to the unix socket of the job; other engines have no doors."""
        with self._engine() as (engine, run):
            if engine.reach is not Reach.CARRIED:
                with contextlib.suppress(NotImplementedError):
                    engine.door("no-such-job")
                    raise AssertionError("this engine carries no connections, so it has no doors")
                return
            id = engine.submit(self._spec(_ECHO, door=True), 1, run, "a")[0]
            self._wait_for(lambda: _answer(engine.door(id), b"abc") == b"cba", "the job to answer through its door")
            data = os.urandom(50_000)
            answer = _answer(engine.door(id), data)
            assert len(answer) == len(data), "a second connection goes through the same door, and nothing is lost"
            try:
                engine.door("no-such-job")
            except EngineError:
                pass
            else:
                raise AssertionError("a job that does not exist has no door")

    def test_nothing_of_the_engine_is_left_open(self) -> None:
        """After `close` this process has as many descriptors and threads as before."""
        self._use()  # libraries open some descriptors once and keep them
        descriptors, threads = _open_descriptors(), set(threading.enumerate())
        self._use()
        self._wait_for(lambda: _open_descriptors() <= descriptors, "the engine's descriptors to be closed", 5)
        self._wait_for(
            lambda: set(threading.enumerate()) <= threads,
            lambda: f"the engine's threads to end: {set(threading.enumerate()) - threads}",
            5,
        )

    def _use(self) -> None:
        with self._engine() as (engine, run):
            ids = engine.submit(self._spec("pass"), 2, run, "a")
            for id in ids:
                self._wait_until_over(engine, id)
            engine.logs(ids[0])


def _answer(door: str, data: bytes) -> bytes:
    """Return the job's answer to bytes that are sent through its door; empty while no job listens."""
    received = bytearray()
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
        link.settimeout(5)
        link.connect(door)
        link.sendall(data)
        while len(received) < len(data) and (part := link.recv(65536)):
            received += part
    return bytes(received)


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
