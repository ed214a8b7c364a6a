"""What `repr` says of public objects: what they are and how far they are, and no address in memory."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs.site.checks import all_public_names

import ropewalk as rw
from ropewalk.calls.markers import method

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")

from ropewalk import exchange, population, search  # noqa: E402
from ropewalk.pipeline import trace  # noqa: E402

ROOT = Path(__file__).parents[1]
ADDRESS = re.compile(r" at 0x[0-9a-f]+")

# Public classes that show what `object` does, and why.
PLAIN = {
    "Evaluator": "an algorithm makes its own, and most are data classes",
    "GroupMember": "users make a class of their own from it",
}


class Learner:
    @method
    def learn(self) -> None: ...


def public_classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for name in all_public_names(ROOT):
        if name.is_ours and not name.module.startswith("ropewalk.testing"):
            value = getattr(importlib.import_module(name.module), name.name)
            if isinstance(value, type) and not getattr(value, "_is_protocol", False) and not inspect.isabstract(value):
                found[name.name] = value
    return found


def test_every_public_class_has_a_repr_of_its_own() -> None:
    classes = public_classes()
    assert len(classes) > 150
    plain = {name for name, kind in classes.items() if kind.__repr__ is object.__repr__}
    assert plain == set(PLAIN)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: rw.Service(Learner), "<Service Learner>"),
        (lambda: rw.Worker(print, 1), "<Worker print>"),
        (lambda: rw.RankGroup(print, (2, 4)), "<RankGroup print>"),
        (lambda: Learner.learn, "<method Learner.learn>"),
        (lambda: rw.managers.SyncManager(), "<SyncManager initial>"),
        (lambda: population.OpenAIES(np.zeros(3), population=8, seed=2), "<OpenAIES population=8 seed=2 generation=0>"),
        (lambda: population.Trial(7), "<Trial seed=7>"),
        (lambda: population.Trial(7, is_test=True), "<Trial seed=7 of a test>"),
        (
            lambda: population.WorkerAutoscaler(1, 4),
            "WorkerAutoscaler(1, 4, evaluations_per_worker=4, patience=3)",
        ),
        (
            lambda: population.GridArchive((2, 3), [(0, 1), (0, 1)]),
            "<GridArchive with elites in 0 of 6 niches>",
        ),
        (lambda: exchange.AllReduce(), "<AllReduce of NoCompression()>"),
        (lambda: exchange.AllGather("sign"), "<AllGather of Sign(vote=False)>"),
        (lambda: exchange.ThreadGroup.make(2)[1], "<ThreadGroup rank 1 of 2, epoch 0>"),
        (lambda: exchange.StallDetector(warn_after_s=5), "<StallDetector warn_after_s=5>"),
        (lambda: trace(torch.nn.Sequential(torch.nn.Linear(2, 1)), torch.zeros(4, 2)), "<ModelGraph of Sequential, 2 "),
        (
            lambda: search.SearchSpace({"rate": 0.1, "model": {"layers": 2}}, ["rate < 1"]),
            "<SearchSpace of rate, model.layers, 1 constraint>",
        ),
        (
            lambda: search.SearchSpace({f"x{number}": number for number in range(50)}),
            "<SearchSpace of x0, x1, x2, x3, x4, x5, x6, x7 and 42 more>",
        ),
    ],
)
def test_a_repr_says_what_it_is(make: Callable[[], Any], shown: str) -> None:
    found = repr(make())
    assert found.startswith(shown) and not ADDRESS.search(found)


def test_a_store_is_shown_by_its_place(tmp_path: Path) -> None:
    with rw.tracking.open_store(tmp_path / "runs.sqlite") as store:
        assert repr(store) == f"<RunStore {tmp_path / 'runs.sqlite'}>"


def test_a_manager_says_its_state_and_not_its_key() -> None:
    with rw.Manager() as manager:
        assert repr(manager) == "<SyncManager started>"
    assert repr(manager) == "<SyncManager shutdown>"
