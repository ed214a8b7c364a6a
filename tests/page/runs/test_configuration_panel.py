"""Trials of a search are selected by fields and by the brush of their picture, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ropewalk.population import Uniform
from ropewalk.search.search import Search
from ropewalk.tracking import Run
from tests.lab.browser import Browser, ServedPage

NUM = 12
PARALLEL = """
    const charts = Array.from(document.querySelectorAll(".nicegui-echart"));
    const chart = charts.map((e) => getElement(parseInt(e.id.slice(1))).chart)
      .find((one) => one && one.getModel() && one.getModel().getComponent("parallelAxis", 0));
"""


def square(run: Run, x: float) -> float:
    return x**2


def test_fields_and_brush_select_the_same_trials_and_the_address_keeps_them(
    browser: Browser, served: ServedPage, tmp_path: Path
):
    results = Search(
        square, {"x": Uniform(0, 1)}, trials=NUM, metric="score", progress=False, store=tmp_path / "runs.db", seed=3
    ).run()
    xs = sorted(float(trial.hyperparameters["x"]) for trial in results)
    middle = (xs[5] + xs[6]) / 2
    browser.open(served.url)
    browser.open(f"{served.base}/search/{results.run}")
    browser.wait_for("Configurations", "Trials")
    browser.click("Select by values", ".q-btn .block")

    def shown_fields() -> list[Any]:
        found = browser.driver.find_elements("css selector", 'input[aria-label="x at least"]')
        return [field for field in found if field.is_displayed()]  # they unfold

    field = browser.until(shown_fields, "a field of x")[0]
    field.send_keys(f"{middle:.4g}")
    browser.wait_for(f"6 of {NUM} trials are selected")
    intervals = browser.script(f"{PARALLEL} return chart.getModel().getComponent('parallelAxis', 0).activeIntervals;")
    assert [least for least, _ in intervals] == [float(f"{middle:.4g}")], "the picture shows what the fields say"

    browser.open(browser.driver.current_url)
    browser.wait_for(f"6 of {NUM} trials are selected")
    browser.until(lambda: browser.script(f"{PARALLEL} return Boolean(chart);"), "the picture")
    brushed = json.dumps([[0.0, middle]])
    browser.script(
        f"{PARALLEL} chart.dispatchAction({{type: 'axisAreaSelect', intervals: {brushed},"
        " parallelAxisId: chart.getModel().getComponent('parallelAxis', 0).id});"
    )
    most = "return document.querySelector('input[aria-label=\"x at most\"]').value;"
    browser.until(lambda: browser.script(most) == f"{middle:.4g}", "the brush in the fields")
    browser.wait_for(f"6 of {NUM} trials are selected")
    browser.click("Select all", ".q-btn .block")
    browser.until(lambda: "trials are selected" not in browser.text, "all trials")
