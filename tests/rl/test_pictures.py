"""The learning curves of experiments, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="draws pictures; pip install matplotlib")

from matplotlib.figure import Figure

from ropewalk import rl
from ropewalk.rl.pictures import draw_learning_curves


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved."""
    figures: list[Any] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kw: (figures.append(figure), save(figure, *args, **kw))
    )
    return figures


def test_a_long_legend_stands_below_the_curves_and_a_short_one_among_them(tmp_path: Path, saved: list[Any]) -> None:
    experiment = rl.Experiment(
        rl.A2C(unroll=5, envs=2),
        rl.Gymnasium("CartPole-v1"),
        steps=200,
        evaluation=rl.Evaluation(every_steps=100, episodes=2),
    )
    result = experiment.run(log="silent")
    draw_learning_curves({"one": result}, tmp_path / "short.png", threshold=475)
    draw_learning_curves({"one": result, "two": result}, tmp_path / "made" / "long.png")
    short, long = saved
    assert [len(short.legends), len(long.legends)] == [0, 1]
    texts = [text.get_text() for text in long.legends[0].get_texts()]
    assert len(texts) == 4 and texts[0] == "one: last 100 episodes of training"
    assert len(short.axes[0].get_legend().get_texts()) == 3
    assert (tmp_path / "made" / "long.png").read_bytes().startswith(b"\x89PNG")
