"""How long a thread looks before it sleeps, and whether it may."""

from __future__ import annotations

import itertools
import os

import pytest

from ropewalk.transport import kernel
from ropewalk.transport.looking import LONG_LOOK_S, Crowding, Looking
from ropewalk.transport.looking import SHORT_SLEEP_S as SHORT_SLEEP_OF_LINKS_S

SHORT_S, LONG_S, SHORT_SLEEP_S = 2e-6, 50e-6, 100e-6


class Waits:
    """Waits in a time of its own, in which each look takes a microsecond."""

    def __init__(self, short_s: float = SHORT_S) -> None:
        self.now = 5.0
        self.is_crowded = False
        self.looking = Looking(short_s, LONG_S, SHORT_SLEEP_S, lambda: self.is_crowded, lambda: self.now)

    def wait(self, comes_after_s: float) -> tuple[str, float]:
        """How a wait for what comes after a time ended, and how many seconds it looked."""
        begun = self.now
        comes_at, looked_until = begun + comes_after_s, begun
        how: list[str] = []

        def poll(timeout: float | None) -> list[tuple[int, int]]:
            nonlocal looked_until
            if timeout == 0:
                self.now += 1e-6
                looked_until = self.now
                how.append("seen")
                return [(1, 1)] if self.now >= comes_at - 1e-9 else []
            assert timeout == 0.5
            self.now = max(comes_at, self.now)
            how.append("woken")
            return [(1, 1)]

        assert self.looking.poll(poll, 0.5) == [(1, 1)]
        return how[-1], round(looked_until - begun, 9)


def test_a_wait_sleeps_after_a_look_in_vain_and_a_short_sleep_makes_the_next_look_long() -> None:
    waits = Waits()
    assert waits.wait(1.0) == ("woken", SHORT_S)
    assert waits.wait(1e-6) == ("seen", 1e-6)
    assert waits.wait(30e-6) == ("woken", SHORT_S)
    for _ in range(3):
        assert waits.wait(30e-6) == ("seen", 30e-6)
    for _ in range(2):
        assert waits.wait(LONG_S + 20e-6) == ("woken", LONG_S)
        assert waits.wait(30e-6) == ("woken", SHORT_S)  # in vain once: two short sleeps, then it is tried again
        assert waits.wait(30e-6) == ("seen", 30e-6)
    assert waits.wait(1.0) == ("woken", LONG_S)
    assert waits.wait(1.0) == ("woken", SHORT_S)


def test_what_has_come_before_a_look_says_nothing_about_looks() -> None:
    waits = Waits()
    waits.wait(30e-6)
    waits.wait(LONG_S + 20e-6)  # in vain
    waits.wait(30e-6)
    assert waits.wait(1e-6) == ("seen", 1e-6)
    assert waits.wait(LONG_S + 20e-6) == ("woken", LONG_S)  # in vain once more, as if it had not been seen
    assert [waits.wait(30e-6)[0] for _ in range(4)] == ["woken", "woken", "woken", "seen"]


def test_a_sleep_is_short_up_to_and_including_the_limit() -> None:
    waits = Waits()
    waits.looking.slept(SHORT_SLEEP_S)
    assert waits.wait(30e-6) == ("seen", 30e-6)
    waits.looking.slept(1.01 * SHORT_SLEEP_S)
    assert waits.wait(30e-6) == ("woken", SHORT_S)


def test_a_long_sleep_outweighs_eight_short_ones() -> None:
    looking = Waits(short_s=0.0).looking
    for num_short, pays in ((9, True), (8, False), (3, False)):
        for _ in range(num_short):
            looking.slept(20e-6)
        looking.slept(1.0)
        assert looking.pays is pays
        looking.slept(1.0)
        assert not looking.pays


def test_long_looks_in_vain_become_rare_and_the_first_that_is_not_makes_them_usual_again() -> None:
    waits, num_long = Waits(), list[int]()
    for number in range(500):
        if waits.wait(LONG_S + 20e-6) == ("woken", LONG_S):
            num_long.append(number)
    between = [later - earlier for earlier, later in itertools.pairwise(num_long)]
    assert between == [2, 4, 8, 16, 32, 64, 64, 64, 64, 64, 64]
    while waits.wait(30e-6) != ("seen", 30e-6):
        pass
    assert waits.wait(LONG_S + 20e-6) == ("woken", LONG_S)
    assert [waits.wait(30e-6)[0] for _ in range(2)] == ["woken", "seen"]


def test_where_threads_wait_for_cores_no_look_is_long() -> None:
    waits = Waits()
    waits.is_crowded = True
    for _ in range(10):
        assert waits.wait(30e-6) == ("woken", SHORT_S)
    waits.is_crowded = False
    while waits.wait(30e-6) != ("seen", 30e-6):
        pass
    assert waits.wait(30e-6) == ("seen", 30e-6), "the first look that was not in vain makes them usual again"


def test_whether_threads_wait_for_cores_is_asked_ever_less_often_while_they_do() -> None:
    num_sleeps = 0
    asked_after: list[int] = []

    def is_crowded() -> bool:
        asked_after.append(num_sleeps)
        return True

    looking = Looking(is_crowded=is_crowded)
    for num_sleeps in range(500):  # noqa: B007  # `is_crowded` reads it
        if looking.pays:
            assert looking.look(lambda: pytest.fail("it looked")) is None
        looking.slept(30e-6)
    between = [later - earlier for earlier, later in itertools.pairwise(asked_after)]
    assert between == [2, 4, 8, 16, 32, 64, 64, 64, 64, 64, 64]


def test_a_link_is_not_looked_at_before_the_first_short_sleep() -> None:
    waits = Waits(short_s=0.0)
    for looking in (waits.looking, Looking()):
        assert not looking.pays
        assert looking.look(lambda: pytest.fail("it looked")) is None
    assert waits.wait(1.0) == ("woken", 0.0)
    assert waits.wait(30e-6) == ("woken", 0.0)
    assert waits.looking.pays
    assert waits.wait(30e-6) == ("seen", 30e-6)
    assert waits.wait(LONG_S + 20e-6) == ("woken", LONG_S)
    assert not waits.looking.pays
    assert waits.wait(30e-6) == ("woken", 0.0)


@pytest.mark.parametrize(("short_s", "pays"), [(0.0, False), (SHORT_S, True)])
def test_after_a_long_look_in_vain_only_short_ones_pay_before_anybody_has_slept(short_s: float, pays: bool) -> None:
    waits = Waits(short_s)

    def nothing() -> bool:
        waits.now += 1e-6
        return False

    waits.looking.slept(30e-6)
    assert waits.looking.pays
    assert waits.looking.look(nothing) is None
    assert waits.looking.pays is pays


def test_what_is_not_to_wait_does_not_look() -> None:
    waits, asked = Waits(), list[float | None]()
    waits.looking.slept(30e-6)

    def poll(timeout: float | None) -> list[tuple[int, int]]:
        asked.append(timeout)
        return []

    assert waits.looking.poll(poll, 0) == []
    assert asked == [0]


def test_an_end_of_a_link_looks_for_longer_than_one_is_woken_and_sleeps_are_short_if_both_are() -> None:
    woken_s = 50e-6  # on virtual machines and laptops; 5 to 20 on others
    assert 2 * woken_s < LONG_LOOK_S < SHORT_SLEEP_OF_LINKS_S <= 4 * woken_s


class Host:
    """A host with two cores, in a time of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_runnable: int | None = 2
        self.num_asked = 0
        self.crowding = Crowding(self._ask, 2, lambda: self.now)

    def _ask(self) -> int | None:
        self.num_asked += 1
        return self.num_runnable

    def is_crowded(self, num_runnable: int | None) -> bool:
        self.num_runnable = num_runnable
        self.now += 0.02
        return self.crowding.is_crowded()


def test_a_host_is_crowded_if_more_threads_want_to_run_than_there_are_cores() -> None:
    host = Host()
    assert [host.is_crowded(num) for num in (1, 2, 3, 2, 30, 0)] == [False, False, True, False, True, False]


def test_where_the_kernel_does_not_say_no_time_is_taken_from_others() -> None:
    host = Host()
    assert not host.is_crowded(1)
    assert host.is_crowded(None)


def test_the_kernel_is_asked_again_after_20_milliseconds() -> None:
    host = Host()
    assert not host.crowding.is_crowded()
    host.num_runnable, host.now = 3, 0.019
    assert not host.crowding.is_crowded()
    assert host.num_asked == 1
    host.now = 0.02
    assert host.crowding.is_crowded()
    assert host.num_asked == 2


def test_the_cores_are_those_of_the_host() -> None:
    num = os.cpu_count()
    assert num
    assert not Crowding(lambda: num).is_crowded()
    assert Crowding(lambda: num + 1).is_crowded()


def test_the_kernel_counts_threads_that_run() -> None:
    num = kernel.num_runnable()
    assert num is not None and num >= 1, "/proc/loadavg has another form"


def test_an_interrupted_check_is_made_again() -> None:
    answers: list[int] = []
    crowding = Crowding(lambda: answers.pop(), 2, lambda: 0.0)
    with pytest.raises(IndexError):  # as KeyboardInterrupt may come there
        crowding.is_crowded()
    answers += [2]
    assert not crowding.is_crowded()
