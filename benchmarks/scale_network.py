"""A blob to many hosts over links of a stated rate: network namespaces on this machine, real agents, real TLS.

    python benchmarks/scale_network.py                                  # as benchmarks/scale.md has it; needs root
    python benchmarks/scale_network.py --hosts 8 --mbit 100 --megabytes 10
    python benchmarks/scale_network.py --source OTHER/src               # with the code of another checkout

Each host is a machine of `tests/lab` with one agent and one worker; a task on each needs the blob. The rate must be low
enough for the processors of this machine, which encrypt and decrypt every copy: 64 copies of 10 MB take some seconds
of CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.lab import Lab, Machine
from tests.scenarios.hosts import cluster_of

SCRIPT = """
    def look(blob):
        time.sleep(0.05)  # so that no worker takes the task of another one
        return socket.gethostname(), len(blob)

    def sent():
        with open("/proc/self/net/dev") as file:
            return next(int(line.split()[9]) for line in file if line.strip().startswith("eth0"))

    NUM, SIZE = {num_hosts}, {size_bytes}
    with session(hosts=NUM) as here:
        with rw.Pool(NUM, session=here) as pool:
            pool.wait_until_ready(600)
            for _ in range({repeats}):
                blob = pool.put(os.urandom(SIZE))
                before, cpu, start = sent(), time.process_time(), time.monotonic()
                found = pool.map(look, [blob] * NUM, chunksize=1)
                took = time.monotonic() - start
                say(json.dumps(dict(
                    time_s=took, cpu_s=time.process_time() - cpu, sent_bytes=sent() - before,
                    hosts=len(set(host for host, _ in found)), deaths=pool.status().num_deaths,
                )))
                del blob
"""


def measure(num_hosts: int, mbit: float, size_bytes: int, repeats: int, source: str = "") -> list[dict[str, float]]:
    """Send blobs to all hosts, one after the other; the facts of each."""

    def slow(head: Machine, hosts: list[Machine]) -> None:
        for machine in (head, *hosts):
            lab.slow(machine, mbit * 1e6)

    variables = {"PYTHONPATH": f"{source}:{Path(__file__).resolve().parents[1]}"} if source else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab() as lab,
        cluster_of(lab, Path(folder), num_hosts, prepare=slow) as cluster,
    ):
        script = SCRIPT.format(num_hosts=num_hosts, size_bytes=size_bytes, repeats=repeats)
        launcher = cluster.launch(script, slots=1, jobs=num_hosts, **variables)
        found = [json.loads(launcher.line()) for _ in range(repeats)]
        launcher.end()
        return found


def rows(facts: Sequence[dict[str, float]], mbit: float, size_bytes: int) -> list[str]:
    """Lines for people: each blob against the time of one link."""
    one_link_s = size_bytes * 8 / (mbit * 1e6)
    return [
        f"blob {number}: {each['time_s']:.2f} s, {each['time_s'] / one_link_s:.2f} x the time of one link "
        f"({one_link_s:.2f} s); launcher sent {each['sent_bytes'] / size_bytes:.2f} copies, "
        f"CPU {each['cpu_s']:.3f} s; {each['hosts']:.0f} hosts had it, {each['deaths']:.0f} deaths"
        for number, each in enumerate(facts, 1)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--mbit", type=float, default=20, help="rate of each link, in each direction")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=2, help="blobs, one after the other")
    parser.add_argument("--source", default="", help="folder with the ropewalk package to measure")
    arguments = parser.parse_args()
    size_bytes = int(arguments.megabytes * 1e6)
    facts = measure(arguments.hosts, arguments.mbit, size_bytes, arguments.repeats, arguments.source)
    print("\n".join(rows(facts, arguments.mbit, size_bytes)))


if __name__ == "__main__":
    main()
