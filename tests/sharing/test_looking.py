"""How long a call looks before it sleeps."""

from __future__ import annotations

import itertools

from ropewalk.sharing.looking import Looking


def test_a_call_looks_for_longer_after_a_short_sleep_and_until_one_is_long() -> None:
    looking = Looking()
    short = looking.num_looks
    looking.slept(100e-6)
    long = looking.num_looks
    assert long > 10 * short
    for _ in range(3):
        looking.ended(long, in_vain=False)
        assert looking.num_looks == long
    looking.slept(0.01)
    assert looking.num_looks == short


def test_long_looks_that_are_in_vain_become_rare_and_the_first_that_is_not_makes_them_usual_again() -> None:
    looking = Looking()
    short, num_long = looking.num_looks, list[int]()
    for number in range(2_000):
        num = looking.num_looks
        if num > short:
            num_long.append(number)
        looking.ended(num, in_vain=True)
        looking.slept(20e-6)
    between = [later - earlier for earlier, later in itertools.pairwise(num_long)]
    assert between == [2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256, 256, 256]
    while (num := looking.num_looks) == short:
        looking.slept(20e-6)
    looking.ended(num, in_vain=False)
    looking.slept(1.0)
    looking.slept(20e-6)
    assert looking.num_looks == num
