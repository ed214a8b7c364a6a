"""How long a thread looks before it sleeps, and whether it may."""

from __future__ import annotations

import itertools
import threading

import pytest

from ropewalk.transport import kernel
from ropewalk.transport.looking import LONG_LOOK_S, Crowding, Looking
from ropewalk.transport.looking import SHORT_SLEEP_S as SHORT_SLEEP_OF_LINKS_S

SHORT_S, LONG_S, SHORT_SLEEP_S = 2e-6, 50e-6, 100e-6


def looking(is_crowded: bool = False) -> Looking:
    return Looking(SHORT_S, LONG_S, SHORT_SLEEP_S, lambda: is_crowded)


def test_a_look_is_long_after_a_short_sleep_and_until_one_is_long() -> None:
    made = looking()
    assert made.next_s() == SHORT_S
    made.slept(50e-6)
    for _ in range(3):
        assert made.next_s() == LONG_S
        made.ended(LONG_S, in_vain=False)
    made.slept(SHORT_SLEEP_S)  # still short
    assert made.next_s() == LONG_S
    made.slept(1.01 * SHORT_SLEEP_S)
    assert made.next_s() == SHORT_S


def test_long_looks_in_vain_become_rare_and_the_first_that_is_not_makes_them_usual_again() -> None:
    made, num_long = looking(), list[int]()
    for number in range(2_000):
        look_s = made.next_s()
        if look_s == LONG_S:
            num_long.append(number)
        made.ended(look_s, in_vain=True)
        made.slept(20e-6)
    between = [later - earlier for earlier, later in itertools.pairwise(num_long)]
    assert between == [2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256, 256, 256]
    while (look_s := made.next_s()) == SHORT_S:
        made.slept(20e-6)
    made.ended(look_s, in_vain=False)
    made.slept(1.0)
    made.slept(20e-6)
    assert made.next_s() == LONG_S


def test_where_threads_wait_for_cores_no_look_is_long() -> None:
    made = looking(is_crowded=True)
    for _ in range(10):
        made.slept(20e-6)
        assert made.next_s() == SHORT_S


class Waits:
    """Waits in a time of its own, in which each look takes a microsecond."""

    def __init__(self) -> None:
        self.now = 5.0
        self.looking = Looking(SHORT_S, LONG_S, SHORT_SLEEP_S, lambda: False, lambda: self.now)

    def wait(self, comes_after_s: float) -> tuple[str, float]:
        """How a wait for what comes after a time ended, and how many seconds it looked."""
        begun = self.now
        comes_at, looked_until = begun + comes_after_s, begun

        def look() -> str:
            nonlocal looked_until
            self.now += 1e-6
            looked_until = self.now
            return "seen" if self.now >= comes_at - 1e-9 else ""

        def sleep() -> str:
            self.now = max(comes_at, self.now)
            return "woken"

        return self.looking.wait(look, sleep), round(looked_until - begun, 9)


def test_a_wait_sleeps_after_a_look_in_vain_and_a_short_sleep_makes_the_next_look_long() -> None:
    waits = Waits()
    assert waits.wait(1.0) == ("woken", SHORT_S)
    assert waits.wait(1e-6) == ("seen", 1e-6)
    assert waits.wait(30e-6) == ("woken", SHORT_S)
    for _ in range(3):
        assert waits.wait(30e-6) == ("seen", 30e-6)
    assert waits.wait(LONG_S + 20e-6) == ("woken", LONG_S)
    for _ in range(2):
        assert waits.wait(30e-6) == ("woken", SHORT_S)  # in vain once: two short sleeps, then it is tried again
        assert waits.wait(30e-6) == ("seen", 30e-6)
        assert waits.wait(LONG_S + 20e-6) == ("woken", LONG_S)
    assert waits.wait(30e-6) == ("woken", SHORT_S)
    assert waits.wait(30e-6) == ("seen", 30e-6)
    assert waits.wait(1.0) == ("woken", LONG_S)
    assert waits.wait(1.0) == ("woken", SHORT_S)


def test_an_end_of_a_link_looks_for_longer_than_one_is_woken_and_sleeps_are_short_if_both_are() -> None:
    woken_s = 50e-6  # on virtual machines and laptops; 5 to 20 on others
    assert 2 * woken_s < LONG_LOOK_S < SHORT_SLEEP_OF_LINKS_S <= 4 * woken_s


def test_without_a_short_look_nothing_is_looked_at_before_the_first_short_sleep() -> None:
    made = Looking(0.0, LONG_S, SHORT_SLEEP_S, lambda: False)
    assert made.look(lambda: pytest.fail("it looked")) is None
    made.slept(20e-6)
    assert made.look(lambda: "seen") == "seen"


class Kernel:
    """Counts as the kernel does, in a time of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.times: tuple[float, float] | None = (7.0, 3.0)
        self.num_asked = 0

    def run_times(self) -> tuple[float, float] | None:
        self.num_asked += 1
        return self.times

    def pass_time(self, ran_s: float, waited_s: float) -> None:
        assert self.times
        self.now += 0.02
        self.times = self.times[0] + ran_s, self.times[1] + waited_s


def test_a_thread_is_crowded_while_it_waits_for_cores_for_more_than_a_tenth_of_its_time() -> None:
    kernel = Kernel()
    crowding = Crowding(kernel.run_times, lambda: kernel.now)
    assert not crowding.is_crowded()
    for ran_s, waited_s, expected in [
        (0.010, 0.002, True),
        (0.010, 0.001, False),
        (0.0, 0.0, False),
        (0.001, 0.1, True),
    ]:
        kernel.pass_time(ran_s, waited_s)
        assert crowding.is_crowded() is expected


def test_it_asks_the_kernel_again_after_20_milliseconds() -> None:
    kernel = Kernel()
    crowding = Crowding(kernel.run_times, lambda: kernel.now)
    crowding.is_crowded()
    kernel.pass_time(0.0, 1.0)
    kernel.now -= 0.001
    assert not crowding.is_crowded()
    assert kernel.num_asked == 1
    kernel.now += 0.002
    assert crowding.is_crowded()
    assert kernel.num_asked == 2


def test_the_times_of_two_threads_are_not_compared() -> None:
    kernel = Kernel()
    crowding = Crowding(kernel.run_times, lambda: kernel.now)
    crowding.is_crowded()
    kernel.pass_time(0.0, 1.0)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(crowding.is_crowded()))
    thread.start()
    thread.join()
    assert seen == [False]


def test_where_the_kernel_does_not_count_no_time_is_taken_from_others() -> None:
    kernel = Kernel()
    kernel.times = None
    crowding = Crowding(kernel.run_times, lambda: kernel.now)
    for _ in range(3):
        assert crowding.is_crowded()
        kernel.now += 1.0


def test_the_kernel_counts_the_time_that_a_thread_runs() -> None:
    before = kernel.run_times()
    sum(range(2_000_000))
    after = kernel.run_times()
    assert before and after, "this kernel counts no times of threads (CONFIG_SCHED_INFO)"
    assert after[0] > before[0]
    assert after[1] >= before[1]
