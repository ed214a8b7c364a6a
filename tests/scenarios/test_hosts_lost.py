"""Hosts that are cut off, come back, or are gone: what becomes of their tasks, their processes and their agents."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from tests.lab import Lab
from tests.scenarios.hosts import Cluster, cluster_of, processes_on, wait_until_empty
from tests.scenarios.tasks import wait_until


def test_a_pool_survives_a_host_that_is_cut_off_and_one_that_is_plugged(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            """
            def work(number):
                note("begun", number)
                time.sleep(0.035)
                return number * number, socket.gethostname(), os.getpid()

            def watch(pool):
                seen = 0
                while True:
                    events = pool.status().events
                    for event in events[seen:]:
                        note("events", f"{time.time():.3f} {event}")
                    seen = len(events)
                    time.sleep(0.01)

            with session(hosts=3) as here:
                with rw.Pool(6, session=here) as pool:
                    pool.wait_until_ready(10)
                    say("ready")
                    threading.Thread(target=watch, args=(pool,), daemon=True).start()
                    accepted = []
                    for index, (square, host, pid) in pool.imap_unordered(lambda n: (n, work(n)), range(2000)):
                        assert square == index * index
                        accepted.append(index)
                        note("accepted", f"{time.time():.3f} {index} {host} {pid}")
                    assert sorted(accepted) == list(range(2000)), "a result is missing, or came twice"
                    pool.wait_until_ready(10)
                    status = pool.status()
                    say(len([w for w in status.workers if w.state in ("idle", "running")]), status.num_deaths)
                    say(*sorted({worker.host for worker in status.workers}))
            """
        )
        assert script.line() == "ready"
        n1, n2, _ = cluster.hosts
        wait_until(lambda: len(cluster.notes("accepted")) > 300)
        cluster.spool.deaf.add(n1)
        cut = time.time()
        lab.cut(n1)
        wait_until(lambda: any("n1" in event for event in cluster.notes("events")), 6.0)
        noticed = float(cluster.notes("events")[0].split()[0])
        time.sleep(max(0.0, cut + 5 - time.time()))
        assert processes_on(n1), "the host was to be cut off, not dead"
        lab.heal(n1)
        fenced_s = wait_until_empty(n1, 10.0)
        cluster.spool.deaf.discard(n1)
        lab.plug(n2)
        assert script.numbers() == [6, 0], "six workers again, and no death: hosts were lost"
        assert "n2" not in script.line()
        code, _, errors = script.end()
        assert code == 0, errors
        assert noticed - cut <= 3.0, "it is to be noticed within 3 s"
        assert fenced_s <= 5.0
        _assert_nothing_of_the_lost_was_accepted(cluster, "n1", cut)
        again = sum(count - 1 for count in Counter(cluster.notes("begun")).values())
        assert again <= 24, f"{again} tasks ran twice; only those that lost workers held may"


def _assert_nothing_of_the_lost_was_accepted(cluster: Cluster, host: str, lost: float) -> None:
    accepted = [line.split() for line in cluster.notes("accepted")]
    assert len(accepted) == 2000
    lost_pids = {pid for when, _, at, pid in accepted if at == host and float(when) < lost}
    late = [words for words in accepted if words[2] == host and words[3] in lost_pids and float(words[0]) > lost + 0.5]
    assert lost_pids
    assert not late
