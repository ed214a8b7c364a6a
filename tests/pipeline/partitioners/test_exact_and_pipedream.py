"""`exact` under PipeDream's cost models, at one level: over more cuts than PipeDream's search has, so never worse."""

from __future__ import annotations

import random

import pytest

from ropewalk.pipeline.partitioners.exact import Exact
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.partitioners.pipedream import PipeDreamPartitioner
from ropewalk.pipeline.partitioners.pipedream_costs import COST_MODELS, make_cost_model
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.testing.model_profiles import MODEL_PROFILES, branches
from ropewalk.testing.partitioner_conformance import random_profile
from tests.profiles import profile_of, shipped


def objectives_s(
    profile: Profile, level: Level, cost_model: str, *, free_transfers: bool = False
) -> tuple[float, float]:
    request = PlanRequest(profile, Topology((level,)), make_schedule("pipedream"))
    exact = Exact(cost_model=make_cost_model(cost_model, free_transfers=free_transfers))
    theirs = PipeDreamPartitioner(cost_model=cost_model, free_transfers=free_transfers)
    return exact.partition(request).objective_s, theirs.partition(request).objective_s


@pytest.mark.parametrize("model", [*MODEL_PROFILES, *shipped("alexnet", "vgg16", "resnet50", "gnmt")])
def test_on_profiles_of_models_exact_is_at_most_the_repositorys_optimum(model: str) -> None:
    profile = branches(2) if model == "branches" else profile_of(model)
    ours, theirs = objectives_s(profile, Level(4, 1e9), "repository")
    assert ours <= theirs * (1 + 1e-12)


@pytest.mark.parametrize("cost_model", list(COST_MODELS))
@pytest.mark.parametrize("free_transfers", [False, True])
def test_on_random_graphs_exact_is_at_most_pipedreams_optimum(cost_model: str, free_transfers: bool) -> None:
    draw = random.Random(7)
    for _ in range(15):
        profile = random_profile(draw, 7, tied=False)
        ours, theirs = objectives_s(profile, Level(draw.randint(1, 5), 30.0), cost_model, free_transfers=free_transfers)
        assert ours <= theirs * (1 + 1e-12), profile
