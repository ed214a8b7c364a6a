"""How long a thread looks before it sleeps, and whether it may."""

from __future__ import annotations

import itertools
import threading

import pytest

from ropewalk.transport import kernel
from ropewalk.transport.looking import Crowding, Looking

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


@pytest.mark.parametrize("is_long", [False, True], ids=["short look", "long look"])
def test_a_wait_sleeps_only_if_the_look_was_in_vain(is_long: bool) -> None:
    made, slept = looking(), list[str]()
    if is_long:
        made.slept(20e-6)

    def sleep() -> str:
        slept.append("slept")
        return "woken"

    assert made.wait(lambda: "seen", sleep) == "seen"
    assert not slept
    assert made.wait(lambda: "", sleep) == "woken"
    assert slept == ["slept"]


def test_without_a_short_look_nothing_is_looked_at_before_the_first_short_sleep() -> None:
    made = Looking(0.0, LONG_S, SHORT_SLEEP_S, lambda: False)
    assert made.look(lambda: pytest.fail("it looked")) is None
    made.slept(20e-6)
    assert made.look(lambda: "seen") == "seen"


class Kernel:
    """Counts as the kernel does, in a time of its own."""

    def __init__(self) -> None:
        self.now, self.times = 100.0, (0.0, 0.0)
        self.num_asked = 0

    def run_times(self) -> tuple[float, float] | None:
        self.num_asked += 1
        return self.times

    def pass_time(self, ran_s: float, waited_s: float) -> None:
        self.now += 0.03
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
    kernel.times, kernel.now = (0.0, 1.0), kernel.now + 0.019
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
    assert Crowding(lambda: None).is_crowded()


def test_the_kernel_counts_the_time_that_a_thread_runs() -> None:
    before = kernel.run_times()
    sum(range(2_000_000))
    after = kernel.run_times()
    assert before and after, "this kernel counts no times of threads (CONFIG_SCHED_INFO)"
    assert after[0] > before[0]
    assert after[1] >= before[1]
