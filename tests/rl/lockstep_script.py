"""A run in lock-step, whose actors are killed every two seconds of progress: prints the digests of its weights as JSON.

python -m tests.rl.lockstep_script ACTORS UPDATES
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.distributed import ProcessCounts, build_program

KILL_S = 2.0


def experiment(updates: int) -> rl.Experiment:
    """One update a round, of four groups."""
    agent = rl.IMPALA(unroll=20, envs=4, batch_size=4)
    steps = updates * 4 * 4 * 20  # of a few more rounds, as steps that begin an episode do not count
    return rl.Experiment(agent, rl.Gymnasium("CartPole-v1"), rl.MLP((32,)), steps, seed=5, groups=4, digest_every=100)


def run(actors: int, updates: int, *, kill: bool = True) -> dict[str, Any]:
    """The digests, hosts and deaths of a run with this many actors; 0 runs in this process."""
    if not actors:
        result = experiment(updates).run(log="silent")
        return {"digests": list(result.digests), "steps": result.counters.steps, "hosts": [], "deaths": 0}
    often = rw.Restart(max_restarts=1_000, backoff_max_s=0.1)
    program = build_program(
        Assembly(experiment(updates), 4), ProcessCounts(actors, "lockstep"), hold=True, restart=often
    )
    deaths, updates, hosts = 0, 0, set[str]()
    with program.launch() as running:
        learner = running.client("learner", on_lost="retry")
        pause = threading.Event()
        while not (status := learner.status()).done:
            hosts |= {node.host for node in running.status().nodes if node.host}
            # Where an actor takes longer to come back, one that is killed again before an update would never end.
            if kill and status.counters.updates > updates:
                running.kill("actors", deaths % actors)
                deaths, updates = deaths + 1, status.counters.updates
            pause.wait(KILL_S if deaths else 0.05)  # an idle host is through with a hundred updates in two seconds
        outcome = learner.outcome()
    digests = list(outcome.digests)
    return {"digests": digests, "steps": outcome.counters.steps, "hosts": sorted(hosts), "deaths": deaths}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
