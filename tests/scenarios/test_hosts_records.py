"""Records of runs that processes on other hosts write: all of them, in order, before the ends of the processes."""

from __future__ import annotations

from pathlib import Path

from tests.lab import Lab
from tests.scenarios.hosts import cluster_of

SCRIPT = """
    from collections import defaultdict
    from ropewalk.processes.owner import ProcessSpec
    from ropewalk.tracking.launcher_records import LauncherRecords
    from tests.processes.entries import WORDS
    from tests.processes.test_session import Listener

    class Sink:
        found, hosts, source = defaultdict(list), set(), ""
        def runs_of(self, batch):
            self.hosts.add(batch.host)
            self.source = batch.source
            return {"run"}
        def put(self, run, record):
            self.found[self.source].append(record.step)
        def settle(self, timeout_s):
            return True

    with session(hosts=2) as here:
        sink = Sink()
        records = LauncherRecords(here.records.listen, sink, sink.runs_of)
        owners = [Listener() for _ in range(8)]
        for owner in owners:
            here.processes.start(ProcessSpec("trial", 0, "tests.tracking.entries:count_and_die", WORDS), owner)
        for owner in owners:
            while owner.heard.get(timeout=120)[0] != "exited":
                pass
        say(len(sink.found), all(steps == [*range(1000)] for steps in sink.found.values()), sorted(sink.hosts))
        records.close()
"""


def test_records_of_processes_that_are_killed_on_other_hosts_are_whole(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        code, out, errors = cluster.launch(SCRIPT).end()
        assert code == 0, errors
        assert out.splitlines() == ["8 True ['n1', 'n2']"], errors
