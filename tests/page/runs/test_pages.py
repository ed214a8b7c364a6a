"""The pages of runs in a real browser: what they show of a store, what they refuse, and what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.search.book import Line
from ropewalk.tracking.records import (
    ArtifactKept,
    AttemptBegan,
    AttemptEnded,
    EventHappened,
    LabelsAre,
    Metrics,
    NoteAdded,
    StateIs,
)
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore
from tests.lab.browser import Browser, ServedPage
from tests.tracking.store.making import begin, of

BAD = '<img src=x onerror="window.acted=1">'
TABS = ("Curves", "Settings", "Time line", "Artifacts", "Logs", "Notes")


def hostile_run(store: RunStore) -> None:
    """A run of which each text would be a program or HTML if the page took it for that."""
    folder = store.folder / "bad"
    (folder / "output").mkdir(parents=True)
    (folder / "output" / "1.txt").write_text(f"\x1b[31mred\x1b[0m \x1b[2J{BAD}\n")
    (folder / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>window.acted=1</script></svg>")
    svg = ArtifactKept(BAD, str(folder / "a.svg"), "image", 9, "0", 1.0, 1.0, "image/svg+xml")
    begin(
        store, "bad", LabelsAre([BAD]), Metrics("", [":loss", BAD], [1.0, 2.0], 1.0, 1.0), NoteAdded(BAD, 1.0),
        EventHappened(BAD, BAD, 1.0), AttemptBegan(1, BAD, 1, 1.0), AttemptEnded(1, "failed", 2.0, BAD), svg,
        StateIs("failed", 2.0, f"ValueError: {BAD}"), name=BAD, project=BAD, folder=str(folder),
        config={":x": "(window.acted=1)", "deep": {":y": "(window.acted=1)"}, BAD: BAD}, facts={"argv": ["sh", BAD]},
    )  # fmt: skip


def link(browser: Browser, text: str) -> Any:
    return browser.until(
        lambda: [one for one in browser.driver.find_elements("css selector", "a") if one.text == text], f"link {text!r}"
    )[0]


def test_a_store_that_comes_is_shown(browser: Browser, served: ServedPage, tmp_path: Path) -> None:
    browser.open(served.url)
    browser.open(f"{served.base}/runs")
    browser.wait_for("No run yet", "there is no store", "ropewalk.track()")
    with open_store(tmp_path / "runs.db") as store:
        for number in range(3):
            begin(store, f"r{number}", StateIs("done", 2.0), name=f"run-{number}", config={"lr": number / 10})
            store.apply(of(f"r{number}", Metrics("", ["loss"], [0.5 + number], 1.0, 2.0)))
        browser.open(f'{served.base}/runs?q=run&sort=[{{"colId":"metric.loss","sort":"desc"}}]')
        browser.wait_for("3 runs", "run-0", "2.5", "0.2")
        rows = browser.script("return [...document.querySelectorAll('.rw-link')].map(e => e.textContent)")
        assert sorted(rows) == ["run-0", "run-1", "run-2"]
        begin(store, "r3", StateIs("running", 2.0), name="run-3")
        browser.wait_for("4 runs", "run-3")  # by itself
        browser.open(f"{served.base}/compare?runs=r0,r1")
        text = browser.wait_for("run-0", "run-1", "loss", "0.5", "1.5")
        assert "lr" in text
        browser.until(lambda: any(len(chart["series"]) == 2 for chart in browser.charts()), "a chart of two runs")
        store.apply(of("r0", Metrics("", ["loss"], [0.125], 2.0, 3.0), StateIs("done", 3.0)))
        browser.wait_for("0.125")  # in the table, too
        code = """
            const found = [...document.querySelectorAll("[aria-label='save as CSV']")].map((button) => {
                const {left, top, width, height} = button.getBoundingClientRect();
                return button.contains(document.elementFromPoint(left + width / 2, top + height / 2));
            });
            return found.slice(0, 2);"""
        assert browser.script(code) == [True, True], "both tables can be saved"


def test_texts_of_runs_stay_texts(browser: Browser, served: ServedPage, tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as store:
        hostile_run(store)
    browser.open(served.url)
    browser.open(f"{served.base}/runs?columns=name,labels,config.%3Ax,metric.%3Aloss")
    browser.wait_for("1 run", BAD[:12])
    assert browser.script("return window.acted") is None
    for tab in TABS:
        browser.open(f"{served.base}/runs/bad?tab={tab}")
        browser.wait_for(BAD, tab)
        assert browser.script("return window.acted") is None
        if tab == "Logs":
            browser.wait_for(f"red \\x1b[2J{BAD}")
            with open(tmp_path / "runs" / "bad" / "output" / "1.txt", "a") as log:
                log.write("added later\n")
            browser.wait_for("added later")
    assert browser.script("return window.acted") is None
    assert browser.script("const a = {}; a['__proto__'] = 1; return Object.keys(a)") == ["__proto__"]
    for query in ("", "?inline=1"):
        found = browser.script(
            f"return fetch(window.path_prefix + '/files/bad/0{query}').then(r => [r.headers.get('content-type'),"
            " r.headers.get('content-disposition'), r.headers.get('content-security-policy')])"
        )
        assert found[0] == "application/octet-stream" and found[1].startswith("attachment")
        assert "sandbox" in found[2]


def test_an_owner_acts_and_a_reader_does_not(browser: Browser, served: ServedPage, tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as store:
        begin(store, "a", StateIs("failed", 2.0, "Traceback\nValueError: lr"), name="brisk", facts={"argv": ["false"]})
        browser.open(served.reader_url)
        browser.open(f"{served.reader_url.partition('/?')[0]}/runs/a")
        browser.wait_for("brisk", "failed", "ValueError: lr")
        assert not {"Archive", "Delete", "Continue"} & set(browser.text.split())
        browser.open(served.url)
        browser.open(f"{served.base}/runs/a")
        browser.wait_for("brisk", "Archive")
        browser.click("Archive", ".q-btn .block")
        browser.wait_for("brisk is archived; lists leave it out")
        assert store.run("a").archived
        browser.click("Rerun", ".q-btn .block")
        browser.wait_for("settings, one a line")
        browser.click("Rerun", ".q-dialog .q-btn .block")
        browser.wait_for("ended with exit code 1")
        store.delete("a")
        browser.wait_for("This run was deleted", "brisk")


def test_a_dialog_that_was_used_is_gone_from_the_page(browser: Browser, served: ServedPage, tmp_path: Path) -> None:
    """One more stayed with each use."""
    with open_store(tmp_path / "runs.db") as store:
        begin(store, "a", StateIs("failed", 2.0), name="brisk", facts={"argv": ["false"]})
    count = "return Object.values(mounted_app.elements).filter(e => e.tag === 'nicegui-dialog').length"
    browser.open(served.url)
    browser.open(f"{served.base}/runs/a")
    browser.wait_for("brisk", "Archive")
    assert browser.script(count) == 0
    for name, words in (("Rerun", "settings, one a line"), ("Fork", "from the checkpoint of"), ("Delete", "for good.")):
        browser.click(name, ".q-btn .block")
        browser.wait_for(words)
        assert browser.script(count) == 1
        browser.click("Cancel", ".q-dialog .q-btn .block")
        browser.until(lambda: browser.script(count) == 0, "the end of the dialog")


@pytest.fixture
def search(tmp_path: Path) -> str:
    lines: list[Line] = [["start", number, {"lr": 10.0**-number, "opt": "ab"[number % 2]}, 1, 0] for number in range(4)]
    lines += [["report", number, 1, [0.1 * number, 1.0 - 0.1 * number]] for number in range(4)]
    lines += [["pause", number, 1] for number in range(4)] + [["promote", 3, 3], ["report", 3, 2, [0.9, 0.5]]]
    config = {"metric": ["score", "cost"], "mode": ["max", "min"], "sampler": "random", "scheduler": "asha"}
    with open_store(tmp_path / "runs.db") as store:
        events = [EventHappened("decision", "", 1.0, {"line": line}) for line in lines]
        begin(store, "s", *events, StateIs("done", 2.0), kind="search", name="tune", config=config)
        begin(store, "s-0", StateIs("paused", 2.0), kind="trial", parent="s")
    return "s"


def test_a_search_is_shown(browser: Browser, served: ServedPage, search: str, tmp_path: Path) -> None:
    browser.open(served.url)
    browser.open(f"{served.base}/searches")
    browser.wait_for("tune", "1 not promoted", "score (max), cost (min)", "0.9")
    browser.script("arguments[0].focus()", link(browser, "tune"))
    with open_store(tmp_path / "runs.db") as store:
        store.apply(of("s-0", StateIs("failed", 3.0)))
    browser.wait_for("1 failed")
    assert browser.script("return document.activeElement.innerText") == "tune"  # who uses the keyboard stays there
    link(browser, "tune").click()
    browser.wait_for("best score 0.9: trial 3", "3 not promoted", "Pareto front")

    def names() -> set[str]:
        return {one.get("name") for chart in browser.charts() for one in chart["series"]}

    browser.until(lambda: {"best so far", "promoted", "Pareto front", "trials"} <= names(), "the charts of the search")
    (parallel,) = (chart for chart in browser.charts() if "parallelAxis" in chart)
    assert {axis["name"] for axis in parallel["parallelAxis"]} == {"lr", "opt", "score"}
    browser.wait_for("it takes 8 trials that have reported")  # an empty picture says why it is empty
