"""What a remote process writes cannot act on the terminal of whoever looks."""

from __future__ import annotations

import pytest

from ropewalk.escaping import escaped, escaped_line, escaped_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 👩‍🚀 \t tab", "plain é 漢 👩‍🚀 \t tab"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202eabc\u2069", r"\u202eabc\u2069"),
        ("\x00\x7f\ud800", r"\x00\x7f\ud800"),
        ("pro\u200bd\ufeff \xad\u3164\u2060", r"pro\u200bd\ufeff \xad\u3164\u2060"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ],
)
def test_characters_that_act_are_shown(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_lines_stay_lines_where_they_are_meant() -> None:
    assert escaped_lines("a\x1b[2J\nb\r") == "a\\x1b[2J\nb\\r"


def test_colours_are_kept_for_a_terminal_and_end_with_their_line() -> None:
    line = "\x1b[31mred\x1b[2J\r"
    assert escaped_line(line, colours=True) == "\x1b[31mred\\x1b[2J\x1b[0m"
    assert escaped_line(line, colours=False) == "red\\x1b[2J"
    assert escaped_line("plain", colours=True) == "plain"


def test_of_a_line_that_writes_over_itself_the_last_state_is_shown() -> None:
    assert escaped_line("\r 10%\r 20%\r100%", colours=False) == "100%"
    assert escaped_line("\r 10%\r\x1b[32m20%\x1b[0m\r", colours=True) == "\x1b[32m20%\x1b[0m\x1b[0m"
