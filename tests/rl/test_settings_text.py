"""Settings come back from JSON as they were, and a file makes nothing else."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest

from ropewalk import rl
from ropewalk.rl.settings_text import AGENTS, KNOWN, NotSettings, from_json, to_json

NETWORKS = [
    rl.MLP((32, 16), activation="relu", layer_norm=True),
    rl.LSTM(rl.NatureCNN(), 8),
    rl.Normalised(rl.ImpalaCNN()),
    rl.Concatenate({"image": rl.NatureCNN(), "speed": rl.MLP((4,))}),
]


@pytest.mark.parametrize("settings", [*(agent() for agent in AGENTS), *NETWORKS], ids=lambda each: type(each).__name__)
def test_settings_come_back_as_they_were(settings: Any) -> None:
    assert from_json(json.loads(json.dumps(to_json(settings)))) == settings


def test_other_values_than_the_defaults_come_back() -> None:
    agent = rl.DQN(epsilon=rl.LinearSchedule(0.5, 0.1), target=rl.Polyak(0.01), return_bounds=(-2.0, 3.0), huber=None)
    assert from_json(to_json(agent)) == agent != rl.DQN()


def test_all_public_agents_and_networks_are_known() -> None:
    public = [getattr(rl, name) for name in dir(rl)]
    agents = {each for each in public if inspect.isclass(each) and issubclass(each, rl.Agent) and each is not rl.Agent}
    assert agents == set(AGENTS)
    makers = {
        each
        for each in public
        if inspect.isclass(each)
        and each.__module__.startswith("ropewalk.rl.networks")
        and dataclasses.is_dataclass(each)
    }
    assert makers <= set(KNOWN.values())


def test_functions_are_refused() -> None:
    with pytest.raises(NotSettings, match="not a settings object of ropewalk"):
        to_json(rl.LSTM(lambda spec: rl.MLP()(spec)))


def test_a_class_of_the_same_name_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class MLP:
        hidden: tuple[int, ...] = ()

    with pytest.raises(NotSettings):
        to_json(MLP())


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        ({"settings": "os.system"}, "'os.system' is not a settings class; there are A2C, APPO"),
        ({"settings": "MLP", "depth": 3}, "MLP are not those of this version: .*depth"),
        ({"settings": "MLP", "hidden": {"tuple": [0]}}, "needs at least one unit"),
    ],
)
def test_a_file_that_names_something_else_is_refused(saved: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_json(saved)
