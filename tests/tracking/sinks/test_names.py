from __future__ import annotations

import sys
from typing import Any

import pytest

from ropewalk.tracking.sinks import make_sink
from ropewalk.tracking.sinks.csv_files import CsvFile


def test_a_name_stands_for_a_sink_and_a_sink_for_itself() -> None:
    sink = CsvFile()
    assert make_sink(sink) is sink
    assert isinstance(make_sink("csv"), CsvFile)


def test_an_unknown_name_is_answered_with_the_near_one() -> None:
    with pytest.raises(ValueError, match="there is no sink 'tensorbord'; did you mean 'tensorboard'"):
        make_sink("tensorbord")


@pytest.mark.parametrize("given", [print, CsvFile, None])
def test_what_is_no_sink_is_refused_before_the_run_begins(given: Any) -> None:
    """A function, as loggers of experiments may be, failed in the writer of its records: it had no method close."""
    with pytest.raises(TypeError, match=r"sinks are names \(csv, .*\) or objects .*RunSink, .*, not "):
        make_sink(given)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("tensorboard", "tensorboard", "tensorboard"),
        ("mlflow", "mlflow", "mlflow-skinny"),
        ("wandb", "wandb", "wandb"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(
    name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=f"the sink '{name}' needs {module}.*pip install {package}"):
        make_sink(name)
