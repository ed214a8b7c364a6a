"""Measures Reverb for `rl_service_rows`: reads questions from its input, a JSON object a line, and answers likewise.

Run by a Python that has `dm-reverb==0.14.0` and `tensorflow-cpu==2.14.1`. The server is a process of
its own, as ours is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import reverb

BATCH = 32


def cpu_s(pids: list[int]) -> float:
    """As `probes.cpu_s`, which imports what is not installed here."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def serve(shapes: list[dict[str, int]]) -> None:
    tables = [
        reverb.Table(
            str(shape["row_bytes"]),
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=shape["max_size"],
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        for shape in shapes
    ]
    server = reverb.Server(tables)
    print(server.port, flush=True)
    server.wait()


class Replay:
    def __init__(self, shapes: list[dict[str, int]]) -> None:
        command = [sys.executable, __file__, "--serve", json.dumps(shapes)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.client = reverb.Client(f"localhost:{int(self.process.stdout.readline())}")
        self.at_once = {shape["row_bytes"]: shape["at_once"] for shape in shapes}
        self.rows = {
            size: np.random.default_rng(0).integers(0, 256, (64, size), dtype=np.uint8) for size in self.at_once
        }
        for shape in shapes:
            self.insert(shape["row_bytes"], shape["max_size"])

    def insert(self, row_bytes: int, num_rows: int) -> None:
        # Items of a chunk travel with all of it: longer chunks would make sampling slower.
        rows, table = self.rows[row_bytes], str(row_bytes)
        at_once = min(16, self.at_once[row_bytes])
        with self.client.trajectory_writer(num_keep_alive_refs=at_once) as writer:
            writer.configure(("x",), num_keep_alive_refs=at_once, max_chunk_length=at_once)
            for number in range(num_rows):
                writer.append({"x": rows[number % len(rows)]})
                writer.create_item(table, 1.0, {"x": writer.history["x"][-1:]})
                if number % (4 * at_once) == 0:
                    writer.flush(4 * at_once)
            writer.flush()

    def sample(self, row_bytes: int, num_rows: int) -> None:
        for _ in range(0, num_rows, BATCH):
            samples = list(self.client.sample(str(row_bytes), BATCH, emit_timesteps=False))
            batch = np.concatenate([sample.data[0] for sample in samples])
            assert batch.shape == (BATCH, row_bytes), batch.shape


def main() -> None:
    replay = Replay(json.loads(sys.stdin.readline())["shapes"])
    pids = [replay.process.pid, os.getpid()]
    print("{}", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        work = getattr(replay, question["what"])
        cpu, began = cpu_s(pids), time.perf_counter()
        work(question["row_bytes"], question["num_rows"])
        wall = time.perf_counter() - began
        print(json.dumps({"steps": question["num_rows"], "wall_s": wall, "cpu_s": cpu_s(pids) - cpu}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(json.loads(sys.argv[2]))
    else:
        main()
