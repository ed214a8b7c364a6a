"""Observers are told in their order, and one that fails keeps nobody from hearing of a failed step."""

from __future__ import annotations

import logging

import pytest

from ropewalk.errors import ExchangeStalled
from ropewalk.exchange.observers import Observer, Observers


class Recorder(Observer):
    def __init__(self, heard: list[str], name: str) -> None:
        self._heard, self._name = heard, name

    def ready(self, name: str) -> None:
        self._heard.append(f"{self._name} {name}")

    def phase(self, name: str, bucket: int, began: float, ended: float) -> None:
        assert ended >= began
        self._heard.append(f"{self._name} {name} {bucket}")

    def failed(self, error: BaseException) -> None:
        self._heard.append(f"{self._name} {error}")

    def explained(self, error: ExchangeStalled) -> ExchangeStalled:
        return ExchangeStalled(f"{error}, says {self._name}")


class Broken(Observer):
    def failed(self, error: BaseException) -> None:
        raise RuntimeError("no disk")


def test_all_are_told_in_order() -> None:
    heard: list[str] = []
    observers = Observers([Recorder(heard, "first"), Recorder(heard, "second")])
    observers.ready("w")
    with observers.timed("encode", 3):
        assert heard == ["first w", "second w"]
    assert heard[2:] == ["first encode 3", "second encode 3"]


def test_a_phase_that_raises_is_not_told() -> None:
    heard: list[str] = []
    with pytest.raises(KeyError), Observers([Recorder(heard, "one")]).timed("encode", 0):
        raise KeyError
    assert heard == []


def test_an_observer_that_fails_does_not_keep_others_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    error = ValueError("lost")
    with caplog.at_level(logging.ERROR):
        assert Observers([Broken(), Recorder(heard, "one")]).failed(5, error) is error
    assert heard == ["one lost"]
    assert "Broken could not be told that step 5 failed" in caplog.text


def test_a_stall_is_explained_by_all_of_them() -> None:
    observers = Observers([Recorder([], "first"), Recorder([], "second")])
    assert str(observers.failed(0, ExchangeStalled("stuck"))) == "stuck, says first, says second"
