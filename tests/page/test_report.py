"""Reports of what runs in this process, and as a browser shows them without a network."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

import ropewalk as rw
from ropewalk.control.view import EventView, ProcessView, View
from ropewalk.errors import SearchFailed
from ropewalk.page.report import ViewRecorder, WrittenReport, _TargetSource, report
from ropewalk.page.report_document import ReportChart
from ropewalk.page.style import Style
from ropewalk.page.watcher import LookResult
from ropewalk.search.results import SearchResults
from ropewalk.tracking.records import RunRecord
from tests.lab.browser import Browser
from tests.lab.plugin import require_packages
from tests.page.test_report_document import BAD
from tests.tracking.store.making import created, new_store

START = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _needs_echarts() -> None:  # pyright: ignore[reportUnusedFunction]
    require_packages("nicegui")


class Target:
    """Shows whatever is asked for, with texts that would act if they were not text."""

    def __init__(self) -> None:
        self.asked: list[dict[str, int]] = []
        self.failure: Exception | None = None

    def view(self, panels: Mapping[str, int]) -> View:
        self.asked.append(dict(panels))
        if self.failure:
            raise self.failure
        tasks = [[f"{BAD}.{n % 3}", BAD, START + n, START + n + 0.9, 1, "ok"] for n in range(30)]
        data = {
            "tasks": {"queued": 3, "running": 1, "done": 1234, "failed": 1, "retried": 1},
            "stream": {"cursor": 30, "now": START + 31, "tasks": tasks},
        }
        return View(
            kind="pool", name=BAD, id="a", pid=1, state="running", started=START, at=START + 60,
            facts={BAD: BAD}, last_failure=BAD, offers=("tasks", "stream"),
            panels={name: data[name] for name in panels},
            processes=tuple(
                ProcessView(name=f"worker.{n}", state=BAD, host=BAD, doing=BAD, last_cause=BAD, done=n % 4)
                for n in range(12)
            ),
            events=(EventView(at=START, kind=BAD, text=BAD, process=BAD),),
        )  # fmt: skip


def test_a_report_is_one_private_file_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text("earlier")
    written = report(file, Target())
    assert written.path == file
    text = file.read_text()
    assert text.startswith("<!DOCTYPE html>") and text.endswith("</html>\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["run.html"]


def test_panels_are_asked_for_when_they_are_known(tmp_path: Path) -> None:
    target = Target()
    report(tmp_path / "run.html", target)
    assert target.asked == [{}, {"tasks": 0, "stream": 0}]


def test_what_a_process_on_a_busy_host_answers_late_is_waited_for(tmp_path: Path) -> None:
    class Late(Target):
        def view(self, panels: Mapping[str, int]) -> View:
            whole = super().view(panels)
            known = {} if len(self.asked) < 4 else whole.panels
            return replace(whole, panels=known)

    target = Late()
    report(tmp_path / "run.html", target)
    assert target.asked == [{}, *[{"tasks": 0, "stream": 0}] * 3]


def test_a_block_is_recorded_and_written_at_its_end(tmp_path: Path) -> None:
    target, file = Target(), tmp_path / "block.html"
    with report(file, target):
        file.unlink()
    assert target.asked[-1] == {"tasks": 0, "stream": 30}  # the rows after those that are known
    assert "recorded" in file.read_text()


def test_a_block_is_written_though_it_fails_or_closes_what_it_shows(tmp_path: Path) -> None:
    target, file = Target(), tmp_path / "block.html"

    def block() -> None:
        with report(file, target):
            target.failure = ValueError("it was closed")
            raise KeyError

    with pytest.raises(KeyError):
        block()
    text = file.read_text()
    assert "ValueError: it was closed" in text and "1,234" in text


def test_calls_per_second_are_told_from_one_look_to_the_next() -> None:
    class Program(Target):
        def view(self, panels: Mapping[str, int]) -> View:
            self.asked.append(dict(panels))
            at = START + len(self.asked)
            nodes = [{"name": "replay", "calls_done": 50 * len(self.asked)}, {"name": "actor"}]
            graph = {"nodes": nodes, "edges": [{"from": "actor", "to": "replay", "calls": 20 * len(self.asked)}]}
            shown = {"graph": graph} if "graph" in panels else {}
            return View(kind="program", name="p", id="p", pid=1, state="running", started=START, at=at, panels=shown,
                        offers=("graph",))  # fmt: skip

    recorder = ViewRecorder(_TargetSource(Program()))
    for _ in range(4):
        recorder.look()
    (chart,) = [part for part in recorder.document().parts if isinstance(part, ReportChart)]
    assert "50 calls/s" in str(chart.option(Style())) and "20/s" in str(chart.option(Style()))


class _Source:
    """Has two things, of which the second comes later."""

    looks = 0

    def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
        self.looks += 1
        view = Target().view({})
        return [LookResult("other", View(kind="pool", name="other", id="other", pid=1, state="", started=9e9, at=9e9)),
                LookResult("a", view if self.looks > 1 else None)]  # fmt: skip


def test_a_recorder_looks_at_the_thing_that_it_was_told() -> None:
    recorder = ViewRecorder(_Source(), "a", lambda: START)
    assert not recorder.look()
    with pytest.raises(RuntimeError, match="nothing to report"):
        recorder.document()
    assert recorder.look()
    assert recorder.document().name == BAD


def test_what_has_no_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not of 5"):
        report(tmp_path / "run.html", 5)
    assert not list(tmp_path.iterdir())


def test_a_run_is_reported_as_far_as_it_has_come_and_at_the_end_of_a_block(tmp_path: Path) -> None:
    store, file = tmp_path / "runs.db", tmp_path / "run.html"
    first, second = 1 / 7, 1 / 13  # not in this text, which the report may have as a difference to the last commit
    with rw.track("digits", name="brisk-otter", store=store, system=False) as run:
        run.log(loss=first)
        with rw.report(file, run, store=store):
            assert f"{first:.6g}" in file.read_text() and f"{second:.6g}" not in file.read_text()
            run.log(loss=second)
    assert f"{second:.6g}" in file.read_text()


def test_a_search_that_has_not_run_says_so(tmp_path: Path) -> None:
    class Search:
        def results(self) -> object:
            raise SearchFailed("it has not run yet")

    with pytest.raises(SearchFailed, match="not run yet"):
        report(tmp_path / "run.html", Search())


def test_a_search_is_reported_from_its_store(tmp_path: Path) -> None:
    config = {"metric": ["loss"], "mode": ["min"], "scheduler": "none"}
    with new_store(tmp_path) as store:
        store.apply([RunRecord("s1", created(name="brisk-search", kind="search", config=config))])
        where = store.where

    class Search:
        store = where

        def results(self) -> SearchResults:
            return SearchResults([], ["loss"], ["min"], "other-name", "s1")

        def view(self, panels: object) -> View:
            raise AssertionError("the store has more of it")

    file = tmp_path / "run.html"
    report(file, Search())
    assert "brisk-search" in file.read_text()


def test_a_target_that_shows_nothing_raises_its_own_error(tmp_path: Path) -> None:
    target = Target()
    target.failure = OSError("no such thing")
    with pytest.raises(OSError, match="no such thing"):
        report(tmp_path / "run.html", target)


def test_the_task_stream_of_a_pool_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "block.html"
    with rw.Pool(2, name="crew") as pool:
        pool.map(abs, range(10))
        with rw.report(file, pool):
            pool.map(len, ["a"] * 20, chunksize=1)
    text = file.read_text()
    assert '"len"' in text and '"abs"' not in text
    assert "crew.0" in text and "Task stream" in text


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(browser: Browser) -> Iterator[Browser]:
    """A browser without a network."""

    def emulate(is_offline: bool) -> None:
        browser.driver.execute("devtools", {"cmd": "Network.enable", "params": {}})
        conditions = {"offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.driver.execute("devtools", {"cmd": "Network.emulateNetworkConditions", "params": conditions})

    emulate(True)
    yield browser
    emulate(False)


@pytest.fixture
def shown(offline: Browser, tmp_path: Path) -> Browser:
    """The report of `Target`."""
    written: WrittenReport = report(tmp_path / "run.html", Target())
    offline.open(written.path.as_uri())
    offline.until(lambda: offline.script("return document.documentElement.dataset.drawn"), "the last chart")
    return offline


_PAINTED = """
return Array.from(document.querySelectorAll(".chart")).map(function (place) {
  return Array.from(place.querySelectorAll("canvas")).reduce(function (sum, canvas) {
    var pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    for (var at = 3; at < pixels.length; at += 4) if (pixels[at]) sum += 1;
    return sum;
  }, 0);
});"""


def test_every_chart_is_painted_and_no_text_acts(shown: Browser) -> None:
    painted = shown.script(_PAINTED)
    assert len(painted) == 3 and min(painted) > 2000
    assert shown.script("return window.hacked") is None
    assert shown.script("return performance.getEntriesByType('resource').length") == 0
    assert shown.text.count("window.hacked=1") > 20
    assert shown.problems() == []  # such as a script that the policy has refused


def test_texts_in_tooltips_are_text(shown: Browser) -> None:
    shown.script(
        """document.querySelectorAll(".chart").forEach(function (place) {
          var chart = echarts.getInstanceByDom(place);
          chart.getOption().series.forEach(function (series, at) {
            if (series.data && series.data.length)
              chart.dispatchAction({type: "showTip", seriesIndex: at, dataIndex: 0});
          });
        });"""
    )
    told = (
        "return Array.from(document.querySelectorAll('.chart'))"
        ".filter(c => c.children.length > 1 && c.lastChild.textContent.includes('window.hacked')).length"
    )
    shown.until(lambda: shown.script(told), "a tooltip")
    assert shown.script("return document.querySelectorAll('.chart img, .chart script').length") == 0
    assert shown.script("return window.hacked") is None


def test_a_script_that_got_into_the_file_would_not_run(shown: Browser) -> None:
    shown.script(
        "var s = document.createElement('script'); s.textContent = 'window.hacked = 2'; document.body.append(s)"
    )
    assert shown.script("return window.hacked") is None
    (problem,) = shown.problems()
    assert "Content Security Policy" in problem


def test_a_click_on_a_heading_sorts_and_another_one_turns_the_order(shown: Browser) -> None:
    def column() -> list[str]:
        return shown.script(
            "return Array.from(document.querySelectorAll('tbody')[0].rows).map(r => r.cells[arguments[0]].textContent)",
            5,
        )

    before = column()
    shown.click("done", "th")
    assert column() == sorted(before)
    shown.click("done", "th")
    assert column() == sorted(before, reverse=True)


def test_charts_and_tables_are_saved_as_csv_without_formulas(shown: Browser) -> None:
    shown.script(
        """window.saved = {};
        URL.createObjectURL = function (blob) {
          blob.text().then(function (text) { window.saved[window.saving] = text; });
          return "data:,";
        };
        document.querySelectorAll("td")[0].textContent = '=HYPERLINK("x")';"""
    )

    def saved(button: int) -> list[str]:
        shown.script("window.saving = arguments[0]; document.querySelectorAll('.csv')[arguments[0]].click()", button)
        return shown.until(lambda: shown.script("return window.saved[arguments[0]]", button), "the text").split("\r\n")

    head, first, *_ = saved(0)
    assert (head, first) == ("series,values", '"done 1,234",1234')
    head, first, *_ = saved(2)
    assert head.startswith("process,state,")
    assert first.startswith('"\'=HYPERLINK(""x"")",')


def test_charts_are_drawn_again_in_the_other_theme(shown: Browser) -> None:
    def themes() -> set[str]:
        return set(shown.script("return Array.from(document.querySelectorAll('.chart')).map(c => c.dataset.drawn)"))

    def background() -> str:
        return shown.script("return getComputedStyle(document.body).backgroundColor")

    assert themes() == {"light"}
    light = background()
    shown.driver.find_element("id", "theme").click()
    assert themes() == {"dark"}
    assert background() != light
    legend = shown.script(
        "return echarts.getInstanceByDom(document.querySelector('.chart')).getOption().legend[0].textStyle.color"
    )
    assert legend == "#e6e6e6"
