from __future__ import annotations

import math

import pytest

from ropewalk.control.facts import shown_facts, shown_number


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("tasks_per_s", 93.21, ("tasks/s", "93.2")),
        ("exchange_bytes_per_s", 48 * 2**20, ("exchange", "48 MiB/s")),
        ("peak_memory_bytes", 2**31, ("peak memory", "2.0 GiB")),
        ("mean_call_s", 0.0042, ("mean call", "4.2 ms")),
        ("num_workers", 1234, ("workers", "1,234")),
        ("goodput", 0.9712, ("goodput", "97.1 %")),
        ("idle_share", 0.5, ("idle share", "50 %")),
        ("engine", "slurm", ("engine", "slurm")),
    ],
)
def test_the_key_of_a_fact_says_its_unit(name: str, value: float | int | str, shown: tuple[str, str]):
    assert shown_facts({name: value}) == [shown]


def test_control_characters_of_names_and_values_are_escaped():
    assert shown_facts({"a\x1b[2J": "b\x1b[31m", "<b>": "<i>"}) == [("a\\x1b[2J", "b\\x1b[31m"), ("<b>", "<i>")]


def test_numbers_that_are_not_finite_are_shown_as_such():
    assert [shown_number(value) for value in (math.inf, math.nan)] == ["inf", "nan"]
