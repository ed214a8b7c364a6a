"""The U-Net of the examples: planned, drawn, and trained stage by stage to the very same weights."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "pipeline_unet.py"


def test_stages_learn_the_same_weights_and_the_pictures_can_be_opened(tmp_path: Path) -> None:
    folder = tmp_path / "pictures of today"  # which nobody has made
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--pictures", str(folder)], capture_output=True, text=True, timeout=200
    )
    said = [line for line in done.stderr.splitlines() if "times vary by" not in line]  # others may be at work here
    assert (done.returncode, said) == (0, []), done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "UNet on 4 devices, 12 GB/s: 4 stages, one_f_one_b, 8 micro-batches in a step"
    assert lines[-1] == "weights equal to those of one process, bit for bit: True"
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step ") and ": loss" in line]
    assert len(losses) == 3 and losses[-1] < losses[0]
    for name in ("plan.svg", "timeline.svg"):
        assert xml.etree.ElementTree.parse(folder / name).getroot().tag.endswith("svg")
