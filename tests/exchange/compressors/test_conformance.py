"""The suite for compressors over all that are listed, in several settings, and over one of a third party."""

from __future__ import annotations

import unittest
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ropewalk.errors import MessageCorrupt
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors import (
    COMPRESSORS,
    Censored,
    Compressor,
    ErrorFeedback,
    Round,
    Sign,
    make_compressor,
)
from ropewalk.exchange.compressors.components import from_host
from ropewalk.exchange.compressors.memoryless import Memoryless
from ropewalk.exchange.message import Message
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


class TestCensoringOverSeveralRounds(CompressorConformance):
    def make_compressor(self) -> Compressor:
        return ErrorFeedback(Censored(c=0.5, history=3))


class TestVote(CompressorConformance):
    def make_compressor(self) -> Compressor:
        return Sign(vote=True)


@dataclass(frozen=True)
class Truncated(Memoryless):
    """A third party's: the first components of each bucket, in float16."""

    name = "truncated"

    num: int = 3

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        values = gradient[: self.num].half().numpy()
        return Message(values.view(np.uint8), {layout.names[0]: values.nbytes}, len(values))

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        if len(data) != 2 * min(self.num, layout.numel):
            raise MessageCorrupt(f"{len(data)} bytes are not {self.num} values")
        out[: self.num] += from_host(np.frombuffer(data, np.float16).astype(np.float32))


class OfTruncated(CompressorConformance):
    buckets = (((9,),),)

    def make_compressor(self) -> Compressor:
        return Truncated()


class TestThirdParty(OfTruncated):
    pass


def test_the_suite_runs_without_pytest() -> None:
    result = OfTruncated.all_tests().run(unittest.TestResult())
    assert result.wasSuccessful()
    assert result.testsRun > 12


class Forgetful(Truncated):
    """Says another thing the second time."""

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        return super().encode(gradient + torch.rand(1), layout, round_)


class Careless(Truncated):
    """Reads whatever comes."""

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        values = np.frombuffer(data, np.float16)
        out[: len(values)] += from_host(values.astype(np.float32))


class Boastful(Truncated):
    """Says that it sends less than it does."""

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        return replace(super().encode(gradient, layout, round_), layers={})


class Eager(Truncated):
    """Writes to the gradient."""

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        return super().encode(gradient.mul_(2), layout, round_)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (Forgetful, "test_a_round_that_was_taken_back_can_be_repeated"),
        (Careless, "test_corrupt_bytes_are_refused_or_read"),
        (Boastful, "test_messages_say_what_they_cost"),
        (Eager, "test_a_gradient_is_not_changed"),
    ],
)
def test_the_suite_finds_what_breaks_a_law(kind: type[Truncated], law: str) -> None:
    class OfKind(OfTruncated):
        def make_compressor(self) -> Compressor:
            return kind()

    with pytest.raises((AssertionError, ValueError, RuntimeError)):
        getattr(OfKind(), law)()
