"""Checkpoints that were written before classes got other names can be read."""

from __future__ import annotations

import pickle

import pytest

from ropewalk.population.algorithms.adapters import ADAPTERS
from ropewalk.population.algorithms.external import OutsideEvaluator
from ropewalk.population.algorithms.pbt_member import PBTMember
from ropewalk.population.algorithms.pickled import unpickled
from ropewalk.population.ga_candidates import ChainEvaluator, GACandidates
from ropewalk.population.moved_classes import loads_moved
from ropewalk.population.object_ref import ObjectRef
from ropewalk.population.open_ended.bouts import AgentEnvPair


def named(module: str, name: str) -> bytes:
    """A pickle that refers to a class of `ropewalk.population`."""
    return f"cropewalk.population.{module}\n{name}\n.".encode()


@pytest.mark.parametrize(
    ("module", "name", "kind"),
    [
        ("broods", "Brood", GACandidates),
        ("broods", "ChainEvaluator", ChainEvaluator),
        ("held", "Held", ObjectRef),
        ("algorithms.outside", "OutsideEvaluator", OutsideEvaluator),
        ("algorithms.pbt_member", "Member", PBTMember),
        ("open_ended.bouts", "Pair", AgentEnvPair),
        ("open_ended.bouts", "AgentEnvPair", AgentEnvPair),
    ],
)
def test_a_class_is_found_by_its_earlier_name(module: str, name: str, kind: type) -> None:
    assert loads_moved(named(module, name)) is kind
    assert unpickled(named(module, name)) is kind


def test_the_adapters_of_other_libraries_are_found_by_their_earlier_module() -> None:
    assert unpickled(named("algorithms.dialects", ADAPTERS[0].__name__)) is ADAPTERS[0]


def test_a_generation_comes_back_with_its_facts() -> None:
    brood = GACandidates(first=3, parents=(1, 2), champions=(1,), episodes=2, sigma=0.5, seed=9)
    now, then = (b"ropewalk.population.ga_candidates\nGACandidates\n", b"ropewalk.population.broods\nBrood\n")
    data = pickle.dumps(brood, protocol=2)
    assert data.count(now) == 1
    assert loads_moved(data.replace(now, then)) == brood


def test_other_modules_are_left_alone() -> None:
    assert loads_moved(b"cpickle\nPickler\n.") is pickle.Pickler
