"""Tables in HTML: texts stay texts."""

from __future__ import annotations

import html.parser

import pytest

from ropewalk.html_table import StateCell, html_box, html_failure, html_headline, html_lines, html_table, state_dot

BAD = "<script>alert(1)</script>\"'&\x1b[2J\u202e<img src=x onerror=alert(1)>"


class Elements(html.parser.HTMLParser):
    """Collects elements with their attributes, and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_what_users_and_processes_name_is_text_everywhere() -> None:
    table = html_table([BAD, "state"], [[BAD, StateCell(BAD)]])
    found = Elements(html_box(html_headline(BAD, BAD, [(BAD, BAD)]), table, html_failure(BAD)))
    assert not {"script", "img"} & set(found.elements)
    assert found.attributes == {"style", "aria-hidden"}
    texts = "".join(found.texts)
    assert texts.count("<script>alert(1)</script>") == 8
    assert not {"\x1b", "\u202e"} & set(texts)


def test_rows_above_the_limit_are_counted() -> None:
    shown = Elements(html_table(["n"], [[str(n)] for n in range(120)], most_rows=50))
    assert shown.elements.count("tr") == 51
    assert shown.texts[-1] == "and 70 more"


def test_numbers_are_aligned_to_the_right() -> None:
    table = html_table(["name", "n"], [["a", "1"]], right={1})
    assert table.count("text-align:right") == 2
    assert table.count("text-align:left") == 2


def test_a_row_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="a row has 1 cells, and there are 2 headings"):
        html_table(["a", "b"], [["x"]])


def test_a_long_cell_is_cut() -> None:
    assert len(html_table(["n"], [["x" * 10_000]])) < 1000


def test_states_have_colours_and_lines_stay_lines() -> None:
    assert (
        len({state_dot(state).partition("aria")[0] for state in ("running", "starting", "failed", "unheard of")}) == 4
    )
    assert html_lines("a<\nb\x07") == "a&lt;\nb\\x07"
    assert html_failure("") == ""
