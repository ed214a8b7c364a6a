"""Durations as people write them; sizes are tested with the resources that they are asked for in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.quantities import counted, parse_duration, shown_duration, shown_size, wants_log_axis


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200.0),
        ("30m", 1800.0),
        ("1h30m", 5400.0),
        ("90s", 90.0),
        ("2d", 172_800.0),
        ("1:30:00", 5400.0),
        ("2-01:00:00", 176_400.0),
        (" 90 ", 90.0),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        (90, 90.0),
        (1.5, 1.5),
    ],
)
def test_a_duration_is_read_as_seconds(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1:30", "2 hours", "h", "-1h", "0", "0h", "inf", "nan", "1:99:00", "30m2h", "٢h", True, None, 0, -1]
)
def test_what_is_not_a_duration_is_refused_with_the_forms_there_are(text: object) -> None:
    with pytest.raises(ValueError, match='such as "2h", "1h30m", "1:30:00" or seconds') as caught:
        parse_duration(text)  # type: ignore[arg-type]
    assert repr(text) in str(caught.value)


@given(st.integers(0, 40), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_words_and_clock_mean_the_same(days: int, hours: int, minutes: int, seconds: int) -> None:
    clock = parse_duration(f"{days}-{hours:02}:{minutes:02}:{seconds:02}")
    assert clock == parse_duration(f"{days}d{hours}h{minutes}m{seconds}s")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (4e-6, "4 µs"),
        (9.996e-4, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (59.94, "59.9 s"),
        (59.96, "1m00s"),
        (3599.7, "1h00m"),
        (90_000, "1d01h"),
        (math.inf, "inf s"),
    ],
)
def test_durations_are_short(seconds: float, words: str) -> None:
    assert shown_duration(seconds) == words


def test_sizes_are_short() -> None:
    assert [shown_size(n) for n in (0, 1536, 5 << 20, 3 << 29)] == ["0 MiB", "1.5 KiB", "5 MiB", "1.5 GiB"]


def test_one_thing_is_not_many() -> None:
    assert [counted(number, "batch", "es") for number in (0, 1, 2)] == ["0 batches", "1 batch", "2 batches"]


@pytest.mark.parametrize(
    ("values", "is_wide"),
    [([1, 20], False), ([1, 21], True), ([0, 100], False), ([-1, 100], False), ([], False), ([5], False)],
)
def test_an_axis_is_logarithmic_where_positive_values_range_widely(values: list[float], is_wide: bool) -> None:
    # A picture of a search asked for it although steps began with 0, which no logarithmic axis has.
    assert wants_log_axis(values) is is_wide
