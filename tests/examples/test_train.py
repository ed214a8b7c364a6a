"""Examples that train a model learn, in stages, with replicas, and on one process."""

from __future__ import annotations

import re
import sys
import types
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.needed_packages import needs

LoadExample = Callable[[str], types.ModuleType]
Output = Callable[..., str]

needs("torch", "sklearn")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def output_of(load_example: LoadExample, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Output:
    """Runs an example here, so that all examples of a test share a session and its warm processes."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        load_example(name).main()
        return capsys.readouterr().out

    return run


def accuracies(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"([\d.]+)% of the test right", output)]


@pytest.mark.soak
def test_digits_and_pictures_and_text_are_learnt(output_of: Output, tmp_path: Path) -> None:
    staged = output_of("train_digits", "--stages", "2", "--epochs", "3")
    assert "2 stages, one_f_one_b, 4 micro-batches" in staged and "one_f_one_b on 2 workers" in staged
    assert accuracies(staged)[-1] > 90
    assert accuracies(output_of("train_digits", "--stages", "2", "--epochs", "3", "--inline")) == accuracies(staged)

    sparse = output_of("train_digits", "--epochs", "4", "--stages", "1", "--gd-sec")
    shares = [float(found) for found in re.findall(r"([\d.]+) % of a dense ring all-reduce", sparse)]
    assert len(shares) == 2 and max(shares) < 60
    assert accuracies(sparse)[-1] > 90

    # Two stages were asked for by default, and took 1.5 times as long as two copies.
    chosen = output_of("train_digits", "--epochs", "1")
    found = re.search(r"simulated, .* ([\d.]+) x data parallelism on 2", chosen)
    assert found and float(found[1]) >= 1.0, "whole copies are among the plans that are compared"

    picture = tmp_path / "run.svg"
    found = re.search(
        r"([\d.]+) with noise, ([\d.]+) without", output_of("train_unet", "--steps", "25", "--drawn", str(picture))
    )
    assert found and float(found[2]) < 0.5 * float(found[1])
    assert xml.etree.ElementTree.parse(picture).getroot().tag.endswith("svg")

    text = output_of("train_gpt", "--schedule", "pipedream", "--steps", "30", "--width", "32")
    assert "pipedream on 2 workers" in text
    found = re.search(r"loss ([\d.]+) on text that it has not seen", text)
    assert found and float(found[1]) < 3.4, "guessing among 98 characters has 4.6"
    written = text.splitlines()[-1]
    assert written[1:5] == "The " and len(written) >= 84
