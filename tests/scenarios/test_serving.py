"""Threads that serve the session's loop while they wait for their own answer (`LoopWithGuests.serve_until`).

pytest's time limit has a handler for SIGALRM in the main thread, where such waiting is then left to the loop's own
thread. So the tests wait in other threads, or run a script of their own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import ropewalk
from tests.scenarios import tasks


class Waiting(threading.Thread):
    """A thread that makes one call; `answer` is its value or exception."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.answer: object = None
        self._call = call
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:
            self.answer = error


def test_many_threads_that_wait_at_once_all_get_their_own_answers() -> None:
    with ropewalk.Pool(3) as pool:
        threads = [
            Waiting(lambda k=k: [pool.apply(tasks.square, (100 * k + i,)) for i in range(100)]) for k in range(6)
        ]
        for thread in threads:
            thread.join(120)
        assert [thread.answer for thread in threads] == [[(100 * k + i) ** 2 for i in range(100)] for k in range(6)]


def test_a_thread_that_serves_hears_of_a_pool_that_another_one_terminates() -> None:
    pool = ropewalk.Pool(1)
    waiting = Waiting(lambda: pool.apply(time.sleep, (100,)))
    while not pool.status().running:
        time.sleep(0.01)
    pool.terminate()
    waiting.join(120)
    assert isinstance(waiting.answer, ropewalk.TaskCancelled)
    pool.join()


def test_results_of_others_arrive_while_nobody_serves_and_after_a_long_visit() -> None:
    with ropewalk.Pool(2) as pool:
        pool.wait_until_ready()
        long = Waiting(lambda: pool.apply(time.sleep, (0.5,)))
        arrived = threading.Event()
        pool.apply_async(tasks.square, (1,), callback=lambda _: arrived.set())
        assert arrived.wait(120)
        long.join(120)
        assert long.answer is None
        again = pool.apply_async(tasks.square, (2,))
        again.wait(120)  # with a limit: the loop's own thread must be back by now
        assert again.get(0) == 4


SCRIPT = """
import os, random, signal, threading, time, ropewalk

def same(x): return x

random.seed(7)
interrupts = answers = 0
stop = []  # not an event, which an interrupt could leave locked
def disturb():
    while not stop:
        time.sleep(random.random() * 0.004)
        os.kill(os.getpid(), signal.SIGINT)

with ropewalk.Pool(3) as pool:
    pool.wait_until_ready()
    for chunk in range(150):
        disturber = threading.Thread(target=disturb)
        stop.clear()
        try:
            disturber.start()
            for i in range(40):
                assert pool.apply(same, (i,)) == i
                answers += 1
        except KeyboardInterrupt:
            interrupts += 1
        while True:
            try:
                stop.append(True)
                disturber.join()
                break
            except KeyboardInterrupt:
                pass
        for _ in range(20):
            try:
                time.sleep(0.001)
                break
            except KeyboardInterrupt:
                pass
        assert pool.map(same, range(50)) == list(range(50)), "the pool was torn"
print("whole", interrupts > 20, answers > 20, interrupts, answers)
"""


def test_interrupts_at_any_moment_of_serving_leave_the_pool_whole() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.startswith("whole True True"), done.stdout + done.stderr
