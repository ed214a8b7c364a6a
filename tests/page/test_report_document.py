"""The HTML of a report: texts stay texts, and only two scripts may run."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.html_table import StateCell
from ropewalk.page.report_document import (
    ReportChart,
    ReportDocument,
    ReportTable,
    ReportText,
    differences,
    json_in_html,
    report_html,
)
from ropewalk.page.style import Option, Style

BAD = "</script><script>window.hacked=1</script><!--<img src=x onerror='window.hacked=1'>\u2028\u202e\x1b[2J\"&"
ECHARTS = "globalThis.echarts = {};"


class Page(html.parser.HTMLParser):
    """The elements of a page, with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def option(style: Style) -> Option:
    return {"color": style.text, "series": [{"name": BAD, "data": [1.0, math.nan, math.inf]}], BAD: BAD}


def page_of(*parts: ReportChart | ReportTable | ReportText, **changes: Any) -> Page:
    facts: dict[str, Any] = {"name": "es", "kind": "pool", "state": "running", "facts": (), "failure": "", "made": ""}
    return Page("".join(report_html(ReportDocument(**{**facts, **changes}, parts=parts), ECHARTS)))


def test_no_text_becomes_an_element_a_script_or_an_attribute() -> None:
    parts = (
        ReportChart(BAD, option, help=BAD),
        ReportTable(BAD, (BAD,), [[BAD], [StateCell(BAD)], [20 * BAD]], help=BAD),
        ReportText(BAD, BAD),
    )
    page = page_of(*parts, name=BAD, kind=BAD, state=BAD, facts=[(BAD, BAD)], failure=BAD, made=BAD)
    assert [attributes.get("id") for attributes in page.named("script")] == ["charts", None, None]
    assert not page.named("img")
    handlers = {name for _, attributes in page.elements for name in attributes if name.startswith("on")}
    assert not handlers
    assert page.words.count("window.hacked=1") > 20
    assert not {"\x1b", "\u202e", "\u2028"} & set(page.words)


def test_only_the_scripts_of_the_file_may_run_and_nothing_is_loaded() -> None:
    page = page_of(ReportChart("a", option))
    (policy,) = [one["content"] for one in page.named("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digests = {f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in page.scripts[1:]}
    assert set(rules.pop("script-src").split()) == digests
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert not any("http" in rule for rule in rules.values())
    assert not {"src", "href"} & {name for _, attributes in page.elements for name in attributes}


def test_charts_are_data_of_which_the_dark_style_differs_in_colours() -> None:
    (chart,) = json.loads(page_of(ReportChart("a", option), ReportChart("empty", lambda style: {})).scripts[0])
    assert chart["light"]["color"] == Style(False).text
    assert chart["light"]["series"][0] == {"name": BAD, "data": [1.0, None, None]}
    assert chart["dark"] == ["+", {"color": ["=", Style(True).text]}]


def test_empty_parts_are_left_out_and_charts_stand_beside_each_other() -> None:
    chart = ReportChart("a", option)
    page = page_of(chart, ReportTable("t", ("n",), [["1"]]), ReportTable("none", (), ()), ReportText("no", ""), chart)
    assert [one["class"] for one in page.named("div") if one.get("class") in ("charts", "scroll")] == [
        "charts", "scroll", "charts",
    ]  # fmt: skip
    assert len(page.named("section")) == 3


def test_columns_are_sorted_by_their_numbers_where_the_text_has_units() -> None:
    table = ReportTable("t", ("memory",), [["2 GiB"], ["900 MiB"]], keys={0: [2 * 2.0**30, 900 * 2.0**20]})
    keys = [float(one["data-key"] or "") for one in page_of(table).named("td")]
    assert keys == [2 * 2.0**30, 900 * 2.0**20]


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "&lt;", "\u2028\u2029", "\ud800"])
def test_json_has_nothing_that_ends_its_element(text: str) -> None:
    found = json_in_html([text])
    assert found.isascii()
    assert not {"<", ">", "&"} & set(found)
    assert json.loads(found) == [text]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=12,
)


def applied(base: Any, change: list[Any] | None) -> Any:
    """As the script of a report does it."""
    if change is None:
        return base
    if change[0] == "=":
        return change[1]
    copy = list(base) if isinstance(base, list) else dict(base)
    for key, one in change[1].items():
        copy[key] = applied(base[key], one)
    return copy


@given(JSON, JSON)
def test_differences_lead_from_one_option_to_the_other(old: Any, new: Any) -> None:
    assert applied(old, differences(old, new)) == new
    assert differences(old, old) is None
