"""Hosts whose clocks differ: that of the day by hours, and the monotonic one, as of machines that began otherwise."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import numpy as np

from ropewalk.tracking.store.opening import open_store
from tests.lab import Lab
from tests.patience import wait_until
from tests.scenarios.hosts import cluster_of
from tests.scenarios.test_hosts_ends import agents_on

PATIENT = """
    class Patient:
        def wait(self, seconds):
            left_s = rw.current_call().time_left_s()
            time.sleep(seconds)
            return left_s

    def call(patient):
        with rw.deadline(60):
            assert 30 < patient.wait(0.01) <= 60
        try:
            with rw.deadline(0.5):
                patient.wait(5)
        except rw.DeadlineExceeded:
            note("calls", socket.gethostname())

    def get(queue, event):
        began = time.monotonic()
        try:
            queue.get(timeout=0.3)
        except Exception as error:
            found = type(error).__name__
        assert not event.wait(0.2)
        assert time.monotonic() - began >= 0.5
        return found

    def clock(_):
        time.sleep(0.05)
        return socket.gethostname(), time.monotonic()

    with session(hosts=2) as here:
        with rw.Pool(4, session=here) as pool:
            pool.wait_until_ready(120)
            clocks = dict(pool.map(clock, range(16), chunksize=1))
            say(round(clocks["n1"] - clocks["n2"], -3))
            queue, event = rw.Queue(session=here), rw.Event(session=here)
            say(*set(pool.starmap(get, [(queue, event)] * 8, chunksize=1)), pool.status().num_deaths)
        program = rw.Program("deadlines")
        for number in range(2):
            patient = program.add(rw.Service(Patient), name=f"patient{number}")
            program.add(rw.Worker(call, patient), replicas=2, name=f"caller{number}")
        say(program.launch(session=here).wait(120))
"""


def test_deadlines_and_timeouts_hold_between_hosts_that_began_at_other_times(lab: Lab, tmp_path: Path) -> None:
    """The machines of the lab share their clock, which hides a time of one host that is compared on another."""
    here = shlex.quote(sys.executable)
    elsewhere = "unshare --time --monotonic 300000 --boottime 300000 --fork --kill-child"
    python = tmp_path / "python-of-another-boot"
    python.write_text(f'#!/bin/sh\ntest $(hostname) = n1 && exec {elsewhere} {here} "$@"\nexec {here} "$@"\n')
    python.chmod(0o700)
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(PATIENT, python=str(python))
        assert float(script.line()) == 300_000
        assert script.line() == "Empty 0"
        assert script.line() == "True"
        code, _, errors = script.end()
        assert code == 0, errors
        assert len(cluster.notes("calls")) == 4


def test_a_trial_that_goes_on_where_the_clock_is_hours_behind_has_its_points_in_order(lab: Lab, tmp_path: Path) -> None:
    # The points of a series are in the order of their times: those of the second host came before those of the first.
    shift = "import time; real = time.time; time.time = lambda: real() + 3600 * $hours"
    run_agent = "import runpy; runpy.run_module('ropewalk.processes.agent_main', run_name='__main__')"
    python = tmp_path / "python-of-another-day"
    python.write_text(
        f"#!/bin/sh\nif mkdir {tmp_path}/first 2> /dev/null; then hours=5; else hours=-5; fi\n"
        f'exec {shlex.quote(sys.executable)} -c "{shift}; {run_agent}"\n'
    )
    python.chmod(0o700)
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            from ropewalk.search import Search, Uniform

            def train(run, x):
                first = (saved := run.restore()) and saved.state["first"] or socket.gethostname()
                num_elsewhere = 0
                for step in run.steps():
                    note("steps", f"{socket.gethostname()} {time.time()}")
                    run.log(step=step, score=float(step))
                    run.checkpoint({"first": first})
                    num_elsewhere += socket.gethostname() != first
                    if num_elsewhere == 5:
                        return
                    time.sleep(0.02)

            with session() as here:
                search = Search(train, {"x": Uniform(0, 1)}, metric="score", trials=1, max_concurrent=1, session=here,
                                store=FOLDER + "/runs.db", folder=FOLDER + "/trials", progress=False)
                (trial,) = search.run()
                say(trial.state, trial.attempts)
            """,
            slots=1,
            python=str(python),
        )
        wait_until(lambda: len(cluster.notes("steps")) >= 3)
        host = cluster.host(cluster.notes("steps")[0].split()[0])
        cluster.spool.deaf.add(host)  # no new agent there
        (agent,) = agents_on(host)
        os.kill(agent.pid, signal.SIGTERM)
        assert script.line() == "done 2"
        code, _, errors = script.end()
        assert code == 0, errors
    times = [float(line.split()[1]) for line in cluster.notes("steps")]
    assert times[0] - times[-1] > 9 * 3600, "the clocks differ"
    with open_store(tmp_path / "runs.db") as store:
        (trial,) = store.runs(kind="trial")
        points = store.points(trial.id, "score")
        assert points.steps.tolist() == list(range(1, len(times) + 1))
        assert np.all(np.diff(points.times) >= 0)
        (series,) = [one for one in store.series(trial.id) if one.name == "score"]
        assert series.last == len(times)
        first, second = store.attempts(trial.id)
        assert first.ended is not None and second.ended is not None
        assert first.began <= first.ended <= second.began <= second.ended
