"""The suite for compressors over settings of GD-SEC."""

from __future__ import annotations

import pytest

from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.presets import top_j
from ropewalk.testing.compressor_conformance import CompressorConformance

#: Besides the default, which is in the table of compressors. Rounds that are dense in part, and others.
SETTINGS = {
    "levels": GDSEC(c=1, values="levels(7)"),
    "layers": GDSEC(c=1, per="layer"),
    "paper's form": GDSEC(xi=10.0),
    "top_j": top_j(0.1),
}


@pytest.mark.parametrize("name", SETTINGS)
class TestSettings(CompressorConformance):
    @pytest.fixture(autouse=True)
    def _chosen(self, name: str) -> None:
        self.name = name

    def make_compressor(self) -> Compressor:
        return SETTINGS[self.name]
