"""The U-Net of the examples: planned, drawn, and trained stage by stage to the very same weights."""

from __future__ import annotations

import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")


@pytest.mark.usefixtures("one_thread")
def test_stages_learn_the_same_weights_and_the_pictures_can_be_opened(
    run_file: Callable[..., list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "pictures of today"  # which nobody has made
    lines = run_file("pipeline_unet", "--pictures", str(folder))
    assert lines[0] == "UNet on 4 devices, 12 GB/s: 4 stages, one_f_one_b, 8 micro-batches in a step"
    assert lines[-1] == "weights equal to those of one process, bit for bit: True"
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step ") and ": loss" in line]
    assert len(losses) == 3 and losses[-1] < losses[0]
    for name in ("plan.svg", "timeline.svg"):
        assert xml.etree.ElementTree.parse(folder / name).getroot().tag.endswith("svg")
