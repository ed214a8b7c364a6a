"""What the page shows of trainers, populations, experiments and searches is what they report themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.control.facts import shown_number
from ropewalk.control.view import Kind
from ropewalk.population import OpenAIES, Uniform, evaluate
from ropewalk.search.search import Search
from tests.control.looking import look_at
from tests.lab.browser import Browser, ServedPage


def open_kind(browser: Browser, served: ServedPage, kind: Kind) -> None:
    """Open the page of the only thing of a kind that this process runs."""
    browser.open(served.url)
    browser.wait_for("Now")
    browser.open(f"{served.base}/now/{look_at(kind).id}")


def wait_for_facts(browser: Browser, expected: Mapping[str, str]) -> None:
    """Wait until the header has these facts; fails with those that it has instead."""

    def wrong() -> dict[str, str | None]:
        facts = browser.facts()
        return {name: facts.get(name) for name, value in expected.items() if facts.get(name) != value}

    try:
        browser.until(lambda: not wrong(), f"{expected}")
    except AssertionError as error:
        raise AssertionError(f"the header has {wrong()}, and should have {expected}") from error


def shown_rows(browser: Browser, num: int, column: str) -> dict[str, dict[str, str]]:
    """The rows of the table of processes; {} until a column of all is drawn."""
    rows = browser.process_rows()
    return rows if len(rows) == num and all(column in row for row in rows.values()) else {}


def ys(browser: Browser, line: str) -> list[float]:
    return [point[1] for point in browser.line(line)]


def test_page_of_a_trainer_tells_its_steps_losses_and_stages(browser: Browser, served: ServedPage):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    plan = rw.pipeline.plan(model, x[:2], devices=2, num_stages=2, micro_batches=4)
    progress = rw.training.Progress(total_steps=20, line=False)
    with rw.Trainer(
        model, torch.nn.functional.mse_loss, torch.optim.Adam, plan, example_inputs=(x[:2],), progress=progress
    ) as trainer:
        steps = [trainer.step(x, y) for _ in range(5)]
        trainer.drain()
        losses = [float(step.metrics().loss) for step in steps]
        open_kind(browser, served, "trainer")
        expected = {"state": "running", "step": "5", "total steps": "20", "loss": shown_number(losses[-1])}
        wait_for_facts(browser, {**expected, "processes up": "2 of 2", "restarts": "0"})
        assert browser.facts()["progress"].startswith("25 %")
        browser.until(lambda: len(ys(browser, "loss")) == 5, "five losses")
        assert ys(browser, "loss") == pytest.approx(losses, rel=1e-4)
        known = {one.name: (one.group, one.state, str(one.done)) for one in trainer.view().processes}
        rows = browser.until(lambda: shown_rows(browser, 2, "group"), "processes")
        assert {name: (row["group"], row["state"], row["done"]) for name, row in rows.items()} == known
        steps.append(trainer.step(x, y))
        trainer.drain()
        wait_for_facts(browser, {"step": "6", "loss": shown_number(float(steps[-1].metrics().loss))})
        browser.driver.set_window_size(1024, 900)
        widths = "return [document.documentElement.scrollWidth, innerWidth];"
        browser.until(lambda: browser.script(widths) == [1024, 1024], "all pictures within 1024 pixels")


class Store:
    def add(self, number: int) -> int:
        return number


def call_until(store: Store, times: int, go: str) -> None:
    """Call a number of times, and then for as long as there is no file, about a hundred times in a second."""
    for number in range(times):
        store.add(number)
    while not Path(go).exists():
        time.sleep(0.01)
        if times:
            store.add(0)
    rw.wait_for_stop()


UPDATE = """
    const done = arguments[0];
    mounted_app.$forceUpdate();
    mounted_app.$nextTick(() => requestAnimationFrame(() => requestAnimationFrame(done)));"""


def edge_labels(browser: Browser) -> list[tuple[bool, str]]:
    """Whether each edge of the graph shows a rate, and the rate, in the order of callers."""
    graphs = [each for chart in browser.charts() for each in chart["series"] if each.get("type") == "graph"]
    return [(link["label"]["show"], link["label"]["formatter"]) for link in graphs[0]["links"]] if graphs else []


def test_page_of_a_program_tells_the_calls_of_its_nodes_and_which_of_their_callers_makes_them(
    browser: Browser, served: ServedPage, tmp_path: Path
):
    program = rw.Program("callers")
    store = program.add(rw.Service(Store), name="store")
    for name, times in (("busy", 30), ("idle", 0)):
        program.add(rw.Worker(call_until, store, times, str(tmp_path / "go")), name=name)
    with program.launch() as running:
        running.wait_ready()
        open_kind(browser, served, "program")
        browser.until(lambda: [is_shown for is_shown, _ in edge_labels(browser)] == [True, False], "one busy caller")
        (tmp_path / "go").touch()
        browser.until(lambda: edge_labels(browser) == [(False, "0/s"), (False, "0/s")], "two idle callers")
        done = {node.label: f"{node.calls_done:,}" for node in running.status().nodes}
        assert int(done["store.0"].replace(",", "")) > 30
        shown = {"store.0": done["store.0"], "busy.0": "", "idle.0": ""}  # workers answer no calls
        browser.until(lambda: {n: row["done"] for n, row in browser.process_rows().items()} == shown, f"{shown}")
        (graph,) = [each for chart in browser.charts() for each in chart["series"] if each.get("type") == "graph"]
        heights = """
            const chart = document.querySelector(".nicegui-echart");
            return [chart.offsetHeight, chart.querySelector("canvas").offsetHeight];"""
        before = browser.script(heights)
        browser.driver.execute_async_script(UPDATE)
        assert browser.script(heights) == before, "an update of the page leaves pictures as high as they are"
        words = f"store, service, 1 of 1 run, {done['store.0']} calls done"
        assert [node["name"].startswith(words) for node in graph["nodes"]].count(True) == 1


def sphere(x: np.ndarray[Any, Any]) -> float:
    return -float(x @ x)


def test_page_of_a_population_tells_its_table_and_the_workers_of_its_pool(browser: Browser, served: ServedPage):
    rows: list[dict[str, Any]] = []
    with rw.Pool(2, name="crew") as pool:

        def report(generation: int, **row: Any) -> None:
            rows.append(row)
            if generation == 3:  # the evaluation waits for us
                open_kind(browser, served, "population")
                expected = {"generation": "3", "generations": "4", "evaluations": "24", "failed": "0", "pool": "crew"}
                expected |= {name: shown_number(row[name]) for name in ("best", "mean", "median")}
                wait_for_facts(browser, {**expected, "processes up": "2 of 2"})
                assert browser.facts()["progress"].startswith("75 %")
                browser.until(lambda: len(ys(browser, "median")) == 3, "three generations")
                assert ys(browser, "median") == pytest.approx([each["median"] for each in rows], rel=1e-4)
                pids = {one.name: str(one.pid) for one in pool.status().workers}
                shown = browser.until(lambda: shown_rows(browser, 2, "pid"), "the workers of the pool")
                assert {name: row["pid"] for name, row in shown.items()} == pids

        evaluate(
            OpenAIES(np.zeros(4), population=8, seed=1),
            sphere,
            generations=4,
            pool=pool,
            report=report,
            progress=False,
        )
    assert len(rows) == 4


def test_page_of_an_experiment_tells_its_last_row(browser: Browser, served: ServedPage):
    from ropewalk import rl

    seen: list[dict[str, Any]] = []

    def log(label: str, row: Mapping[str, Any]) -> None:
        if label == "evaluation":
            return
        seen.append(dict(row))
        if len(seen) == 20:
            open_kind(browser, served, "experiment")
            expected = {
                "environment": "CartPole-v1",
                "env steps": f"{row['steps']:,}",
                "updates": f"{row['updates']:,}",
            }
            expected |= {"episodes": f"{row['episodes']:,}", "return": shown_number(row["score"])}
            wait_for_facts(browser, {**expected, "environment": "CartPole-v1"})
            assert browser.facts()["progress"].startswith(f"{100 * row['steps'] / 1000:.0f} %")

    agent = rl.DQN(envs=4, unroll=8, batch_size=8, learning_starts=64, samples_per_insert=1.0)
    rl.Experiment(agent, rl.Gymnasium("CartPole-v1"), steps=1000).run(log=log)
    assert len(seen) >= 20


def trial_curves(browser: Browser) -> dict[int, list[float]]:
    """The scores of each trial whose curve is drawn; a point is (step, score, trial)."""
    lines = [each for chart in browser.charts() for each in chart["series"] if each.get("type") == "line"]
    return {line["data"][0][2]: [point[1] for point in line["data"]] for line in lines if line["data"]}


def climb_until_told(run: Any, x: float, folder: str) -> None:
    """Climbs; the third trial waits for a file."""
    Path(folder, f"trial {x}").touch()
    while len(list(Path(folder).glob("trial *"))) == 3 and not Path(folder, "go").exists():
        time.sleep(0.02)
    for step in run.steps(3):
        run.log(score=x * step)


def test_page_of_a_search_tells_its_trials(browser: Browser, served: ServedPage, tmp_path: Path):
    space = {"x": Uniform(0, 1), "folder": str(tmp_path)}
    search = Search(
        climb_until_told, space, trials=4, metric="score", max_concurrent=1, progress=False,
        store=tmp_path / "runs.db",
    )  # fmt: skip
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(search.run()))
    thread.start()
    try:
        browser.until(lambda: _done(2), "two trials that are done")
        open_kind(browser, served, "search")
        expected = {"metric": "score", "trials": "3", "trials in all": "4", "running": "1", "done": "2"}
        wait_for_facts(browser, expected)
        browser.until(lambda: "trial 1 has ended" in browser.text, "the end of the second trial among the events")
        browser.until(lambda: [len(points) for points in trial_curves(browser).values()] == [3, 3], "two whole curves")
        facts, drawn = browser.facts(), trial_curves(browser)
        browser.click(f"run {look_at('search').run}", "a")
        browser.wait_for("Importance", "Trials", "running")
    finally:
        (tmp_path / "go").touch()
        thread.join()
    trials = [results[0][number] for number in range(2)]
    best = max(trials, key=lambda trial: trial.best)
    assert (facts["best"], facts["best trial"]) == (shown_number(best.best), str(best.number))
    assert facts["progress"].startswith("50 %")
    assert drawn == {trial.number: pytest.approx([trial.scores[step] for step in (1, 2, 3)]) for trial in trials}


def _done(number: int) -> bool:
    try:
        return look_at("search").facts["done"] == number
    except ValueError:  # it has not begun
        return False
