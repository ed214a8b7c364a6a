"""Populations are seen by other terminals while they run: what is shown is what they themselves know."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.control.view import View
from ropewalk.population import (
    PBT,
    POET,
    ESConfig,
    GenerationMode,
    GridArchive,
    MAPElites,
    OpenAIES,
    Outcome,
    PBTMember,
    Reproduction,
    StragglerPolicy,
    Trial,
    Uniform,
    evaluate,
)
from ropewalk.population.algorithm import Algorithm
from ropewalk.population.running import name_of
from ropewalk.tracking.interruptions import RunStopped
from tests.control.looking import ask_for, look_at, looks
from tests.population import fitnesses

pytestmark = pytest.mark.usefixtures("shared_session")


def sphere(x: np.ndarray[Any, Any]) -> float:
    return -float(x @ x)


def seen_after(
    algorithm: Algorithm[Any], fitness: Any, generations: int, panels: dict[str, int], **options: Any
) -> View:
    """What another terminal sees of a run right after a generation."""
    views: list[View] = []

    def report(generation: int, **row: float) -> None:
        if generation == generations:
            views.append(look_at("population", panels))

    evaluate(algorithm, fitness, generations=generations + 1, report=report, progress=False, **options)
    assert looks("population") == []
    return views[0]


def test_the_header_has_what_the_table_says() -> None:
    algorithm = OpenAIES(np.zeros(4), population=8, seed=1)
    view = seen_after(algorithm, sphere, 3, {"fitness": 0}, test=2)
    run = evaluate(OpenAIES(np.zeros(4), population=8, seed=1), sphere, generations=4, progress=False, test=2)
    row = run.table[2]
    assert (view.kind, view.name, view.state, view.offers) == ("population", "OpenAIES", "running", ("fitness",))
    facts = view.facts
    assert (facts["fitness"], facts["generation"], facts["generations"], facts["evaluations"]) == ("sphere", 3, 4, 24)
    assert (facts["best"], facts["mean"], facts["median"]) == (row["best"], row["mean"], row["median"])
    assert (facts["test"], facts["under_way"], facts["failed"], facts["workers"]) == (row["test"], 0, 0, 1)
    assert view.progress == 0.75 and view.left_s is not None and view.left_s > 0
    assert view.panels["fitness"]["median"] == [each["median"] for each in run.table[:3]]
    assert view.processes == () and view.actions == ("stop",)


def test_a_run_on_a_pool_is_found_in_its_session() -> None:
    with rw.Pool(2) as pool:
        view = seen_after(OpenAIES(np.zeros(4), population=8), fitnesses.noisy_sphere, 2, {}, pool=pool)
    assert (view.facts["workers"], view.facts["pool"]) == (2, pool.name)
    assert view.facts["fitness"] == "noisy_sphere" and view.panels == {}


def test_failed_evaluations_are_events_with_their_cause() -> None:
    def fails(x: Any, trial: Trial) -> float:
        if trial.rng.random() < 0.5:
            raise OSError("<script>no camera</script>")
        return 0.0

    view = seen_after(OpenAIES(np.zeros(2), population=8), fails, 1, {}, failures="worst")
    assert view.facts["failed"] == len(view.events) > 0
    assert view.last_failure == "OSError: <script>no camera</script>"
    assert view.events[0].text.endswith(view.last_failure) and view.events[0].at >= view.started


def test_dropped_stragglers_are_counted() -> None:
    mode = GenerationMode(StragglerPolicy.drop(after=0.5, grace=0.0))
    with rw.Pool(2) as pool:
        view = seen_after(OpenAIES(np.zeros(2), population=8), fitnesses.uneven, 2, {}, pool=pool, mode=mode)
    assert int(view.facts["dropped"]) > 0


def test_an_archive_is_shown_as_it_is_after_the_generation() -> None:
    def behaves(x: np.ndarray[Any, Any]) -> Outcome:
        return Outcome(sphere(x), behaviour=np.tanh(x[:2]))

    archive = GridArchive((5, 5), [(-1, 1), (-1, 1)])
    algorithm = MAPElites(3, archive, population=20)
    fitness_then: list[Any] = []
    views: list[View] = []

    def report(generation: int, **row: float) -> None:
        fitness_then.append(archive.fitness_by_niche())
        views.append(look_at("population", {"archive": 0}))

    evaluate(algorithm, behaves, generations=3, report=report, progress=False)
    for view, expected in zip(views, fitness_then, strict=True):
        shown = np.full((5, 5), np.nan)
        for first, second, value in view.panels["archive"]["values"]:
            shown[first, second] = value
        assert np.array_equal(shown, expected, equal_nan=True)
    assert views[-1].facts["elites"] == views[-1].panels["archive"]["elites"] > 0


def test_members_of_population_based_training_are_shown_with_their_copies() -> None:
    def train(member: PBTMember, trial: Trial) -> float:
        member.state = (member.state or 0.0) + member.hyperparameters["rate"]
        return member.state

    algorithm = PBT({"rate": Uniform(0, 1)}, population=6, steps=6, synchronous=True, seed=2)
    views: list[View] = []

    def report(generation: int, **row: float) -> None:
        if generation == 4:
            views.append(look_at("population", {"schedules": 0, "lineage": 0}))
            mutations.extend(algorithm.mutations)

    mutations: list[Any] = []
    evaluate(algorithm, train, report=report, progress=False)
    (view,) = views
    assert view.progress == pytest.approx(4 / 6)
    assert len(view.panels["schedules"]["intervals"]) == 4 * 6
    copies = view.panels["lineage"]["copies"]
    assert [(each["member"], each["donor"]) for each in copies] == [(each.member, each.donor) for each in mutations]
    assert len(copies) == len(view.events) > 0 and "copies member" in view.events[0].text


def test_the_tree_of_open_ended_evolution_is_shown_with_events() -> None:
    class Space:
        def initial(self) -> float:
            return 0.0

        def mutate(self, environment: float, rng: np.random.Generator) -> float:
            return environment + float(rng.random())

        def vector(self, environment: float) -> np.ndarray[Any, Any]:
            return np.array([environment])

        def describe(self, environment: float) -> str:
            return f"<i>{environment:.1f}"

    def fitness(x: Any, environment: float, trial: Trial) -> float:
        return 10.0 - environment

    algorithm = POET(
        2,
        Space(),
        learning=ESConfig(pairs=2),
        reproduction=Reproduction(every=1, at_score=0, least_score=0, most_score=100, children=2, capacity=2),
        transfer_every=2,
    )
    view = seen_after(algorithm, fitness, 4, {"tree": 0})
    environments = view.panels["tree"]["environments"]
    assert len(environments) > 3 and environments[0]["label"] == "<i>0.0" and environments[1]["parent"] == 0
    assert any("is admitted" in event.text for event in view.events)
    assert any("is archived" in event.text for event in view.events)


def test_a_look_while_the_algorithm_computes_is_answered_without_its_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.population.running._PATIENCE_S", 0.01)
    views: list[View] = []

    class Slow(MAPElites):
        def tell(self, candidates: Any, outcomes: Any) -> None:
            views.append(look_at("population", {"fitness": 0, "archive": 0}))
            super().tell(candidates, outcomes)

    algorithm = Slow(2, GridArchive((2, 2), [(-1, 1), (-1, 1)]), population=4)
    evaluate(algorithm, lambda x: Outcome(0.0, behaviour=x), generations=1, progress=False)
    assert views[0].panels.keys() == {"fitness"} and "under_way" not in views[0].facts


def test_it_stops_after_the_generation_in_which_it_was_asked_to() -> None:
    answers: list[str] = []

    def report(generation: int, **row: float) -> None:
        if generation == 2:
            answers.append(ask_for("population", "stop"))
            assert look_at("population").state == "stopping"

    with pytest.raises(RunStopped, match="after step 2"):
        evaluate(OpenAIES(np.zeros(2), population=4), sphere, generations=50, report=report, progress=False)
    assert answers == ["it stops after the generation in which it is"]


def test_it_pauses_only_where_a_checkpoint_is_written(tmp_path: Path) -> None:
    view = seen_after(OpenAIES(np.zeros(2), population=4), sphere, 1, {}, checkpoint=tmp_path)
    assert view.actions == ("stop", "pause")
    assert [event.kind for event in view.events] == []  # the row is reported before its checkpoint is written


def test_nothing_is_computed_before_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.population.running.facts_of", lambda *_: pytest.fail("nobody looks"))
    before = threading.active_count()
    evaluate(OpenAIES(np.zeros(2), population=4), sphere, generations=3, progress=False)
    assert threading.active_count() == before


def test_a_fitness_function_has_a_name_whatever_it_is() -> None:
    class Called:
        def __call__(self, x: Any) -> float:
            return 0.0

    assert (name_of(sphere), name_of(Called())) == ("sphere", "Called")


def test_a_result_shows_the_same_as_the_run() -> None:
    run = evaluate(OpenAIES(np.zeros(2), population=4), sphere, generations=3, progress=False)
    view = run.view()
    assert view.has_ended and view.facts["evaluations"] == 12 and view.panels["fitness"]["cursor"] == 3
    assert run.view({}).panels == {} and run.view({"other": 0}).panels == {}


def test_a_result_is_a_table_in_notebooks_whose_text_is_escaped() -> None:
    run = evaluate(OpenAIES(np.zeros(2), population=4), sphere, generations=12, progress=False)
    run.table[-1]["failed"] = 3
    html = run._repr_html_()
    assert html.count("<tr>") == 11 and "<strong>OpenAIES</strong>" in html and f"{run.best_fitness:.6g}" in html
