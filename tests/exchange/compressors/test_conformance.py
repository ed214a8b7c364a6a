"""The suite for compressors over all that are listed, in several settings, and over one of a third party."""

from __future__ import annotations

import pytest

from ropewalk.exchange.compressors import COMPRESSORS, Compressor, make_compressor
from ropewalk.testing.compressor_conformance import CompressorConformance

#: Settings in which small buckets show what a compressor does.
OPTIONS = {"top_k": {"density": 0.1}, "random_k": {"density": 0.1}, "error_feedback": {"inner": "sign"}}


@pytest.mark.parametrize("name", COMPRESSORS)
class TestListed(CompressorConformance):
    @pytest.fixture(autouse=True)
    def _chosen(self, name: str) -> None:
        self.name = name

    def make_compressor(self) -> Compressor:
        return make_compressor(self.name, **OPTIONS.get(self.name, {}))
