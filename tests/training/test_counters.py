from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.connection import Connection

import torch

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.training.counters import WorkerCounters, peak_device_bytes, peak_memory_bytes


def _peaks(connection: Connection) -> None:
    before = peak_memory_bytes()
    block = bytearray(96 << 20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    connection.send((before, peak_memory_bytes()))


def test_the_peak_counts_what_was_given_back_but_not_what_another_process_had() -> None:
    block = bytearray(256 << 20)
    block[::4096] = b"x" * len(block[::4096])  # the peak of this process, which the child must not show
    del block
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_peaks, args=(theirs,))
    process.start()
    before, after = ours.recv()
    process.join()
    ours.close()
    theirs.close()
    assert after - before > 80 << 20
    assert before < peak_memory_bytes() - (128 << 20)


def test_a_cpu_has_no_device_memory() -> None:
    assert peak_device_bytes("cpu") is None
    assert peak_device_bytes(torch.device("cpu")) is None


def test_counters_travel() -> None:
    counters = WorkerCounters(PlanWorker(1, 0), sent_bytes={PlanWorker(0, 0): 5}, notes=("slow",))
    assert pickle.loads(pickle.dumps(counters)) == counters
