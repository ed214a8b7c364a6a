"""Options arrive from tables and from words; what is misspelt or does not fit is named."""

from __future__ import annotations

import dataclasses

import pytest

from ropewalk.engines.options import read_options, words_to_options
from ropewalk.errors import SettingsError


@dataclasses.dataclass(frozen=True)
class Options:
    partition: str = ""
    nodes: int = 1
    patience: float = 2.0
    exclusive: bool = False
    hosts: list[str] = dataclasses.field(default_factory=list)
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    port: int | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"nodes must be at least 1, not {self.nodes}")


def test_without_options_all_have_their_defaults() -> None:
    assert read_options("mine", Options, {}) == Options()


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("partition", "gpu", "gpu"),
        ("partition", "", ""),
        ("nodes", 3, 3),
        ("nodes", "3", 3),
        ("nodes", " 3 ", 3),
        ("patience", 1, 1.0),
        ("patience", "0.5", 0.5),
        ("exclusive", True, True),
        ("exclusive", "yes", True),
        ("exclusive", "OFF", False),
        ("hosts", ["a", "b"], ["a", "b"]),
        ("hosts", "a, b,", ["a", "b"]),
        ("hosts", '["a,b", "c"]', ["a,b", "c"]),
        ("hosts", "", []),
        ("labels", {"a": "1"}, {"a": "1"}),
        ("labels", "a=1, b = x=y", {"a": "1", "b": "x=y"}),
        ("labels", "a=", {"a": ""}),
        ("port", None, None),
        ("port", 22, 22),
        ("port", "22", 22),
    ],
)
def test_a_value_is_read_as_the_type_of_its_option(name: str, given: object, value: object) -> None:
    assert getattr(read_options("mine", Options, {name: given}), name) == value


@pytest.mark.parametrize(
    ("name", "given", "rule"),
    [
        ("partition", 3, "a text"),
        ("nodes", "three", "a whole number"),
        ("nodes", 1.5, "a whole number"),
        ("nodes", True, "a whole number"),
        ("nodes", None, "a whole number"),
        ("nodes", "--3", "a whole number"),
        ("nodes", "²", "a whole number"),
        ("patience", "soon", "a number"),
        ("patience", False, "a number"),
        ("patience", "nan", "a number"),
        ("exclusive", "maybe", "true or false"),
        ("exclusive", 1, "true or false"),
        ("hosts", 5, "a list of texts"),
        ("hosts", ["a", 5], "a list of texts"),
        ("labels", "a", "a table of strings"),
        ("labels", {"a": 1}, "a table of strings"),
        ("labels", "=1", "a table of strings"),
        ("port", "ssh", "a whole number"),
    ],
)
def test_a_value_that_does_not_fit_is_shown_with_the_rule(name: str, given: object, rule: str) -> None:
    with pytest.raises(SettingsError, match=f"option {name} of the engine 'mine' must be {rule}") as caught:
        read_options("mine", Options, {name: given})
    assert repr(given) in str(caught.value)


def test_a_misspelt_option_is_answered_with_the_near_one_and_all() -> None:
    with pytest.raises(SettingsError, match="has no option partion; did you mean partition\\?") as caught:
        read_options("mine", Options, {"partion": "gpu"})
    assert "exclusive, hosts, labels, nodes, partition, patience, port" in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_the_options_themselves_refuse_is_said_with_the_name_of_the_engine() -> None:
    with pytest.raises(SettingsError, match="'mine' do not fit: nodes must be at least 1, not 0"):
        read_options("mine", Options, {"nodes": 0})


def test_a_required_option_that_is_missing_is_named() -> None:
    @dataclasses.dataclass(frozen=True)
    class Strict:
        image: str

    with pytest.raises(SettingsError, match="image"):
        read_options("mine", Strict, {})


def test_words_are_read_as_options() -> None:
    words = ["partition=gpu", "node-selector=a=b", "empty=", " spaced =1"]
    assert words_to_options(words) == {"partition": "gpu", "node_selector": "a=b", "empty": "", "spaced": "1"}
    assert words_to_options([]) == {}


@pytest.mark.parametrize("word", ["partition", "=gpu", ""])
def test_a_word_that_is_no_option_is_refused(word: str) -> None:
    with pytest.raises(SettingsError, match="name=value"):
        words_to_options([word])


def test_an_option_given_twice_is_refused_with_both_values() -> None:
    with pytest.raises(SettingsError, match="node_count is given twice: '1' and '2'"):
        words_to_options(["node-count=1", "node_count=2"])
