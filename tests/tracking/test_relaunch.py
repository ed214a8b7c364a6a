from __future__ import annotations

import pytest

from ropewalk.errors import SettingsError
from ropewalk.tracking.relaunch import Relaunch, take_relaunch


@pytest.mark.parametrize(
    "relaunch",
    [
        Relaunch(),
        Relaunch(continues="a1"),
        Relaunch(forks="a1", fork_step=40.5, settings={"lr": 1e-4, "model.layers": [1, None]}),
    ],
)
def test_what_is_meant_comes_through_the_environment_once(relaunch: Relaunch) -> None:
    environ = {"PATH": "/bin", **relaunch.to_environment()}
    assert take_relaunch(environ) == relaunch
    assert environ == {"PATH": "/bin"}, "processes of the script must not find it"
    assert take_relaunch(environ) == Relaunch()


def test_settings_replace_those_of_the_script_which_is_not_changed() -> None:
    config = {"lr": 0.1, "model": {"layers": 2}, "a.b": 1}
    found = Relaunch(settings={"lr": 0.2, "model.layers": 3, "a.b": 2}).configure(config)
    assert found == {"lr": 0.2, "model": {"layers": 3}, "a.b": 2}
    assert config == {"lr": 0.1, "model": {"layers": 2}, "a.b": 1}


@pytest.mark.parametrize("name", ["rate", "model.width", "lr.first", "model.layers.x"])
def test_a_setting_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"--set {name}: .* it has lr, model"):
        Relaunch(settings={name: 1}).configure({"lr": 0.1, "model": {"layers": 2}})


def test_what_is_meant_for_a_trial_of_a_search_is_not_taken_by_the_script() -> None:
    relaunch = Relaunch(forks="s-3", settings={"lr": 1}, trial="s-3")
    environ = relaunch.to_environment()
    assert take_relaunch(environ) == Relaunch()
    assert take_relaunch(environ, of_search=True) == relaunch
    assert environ == {}
    of_script = Relaunch(continues="a1").to_environment()
    assert take_relaunch(of_script, of_search=True) == Relaunch() != take_relaunch(of_script)


@pytest.mark.parametrize("wrong", [{"ROPEWALK_SET": "lr=1"}, {"ROPEWALK_SET": "[1]"}, {"ROPEWALK_FORK_STEP": "last"}])
def test_wrong_variables_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="ROPEWALK_SET"):
        take_relaunch(wrong)
