"""Error feedback: what is left out comes later, and stays small."""

from __future__ import annotations

import pytest
import torch

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.compressors import (
    Censored,
    Compressor,
    ErrorFeedback,
    Half,
    LowRank,
    NoCompression,
    Quantized,
    RandomK,
    Round,
    Sign,
    TopK,
)
from tests.exchange.compressors.rounds import layout_of

LAYOUT = layout_of((12, 10), (10,))


@pytest.mark.parametrize(
    ("compressor", "bound"),
    [(Half(), 0.01), (TopK(0.1), 15), (RandomK(0.1), 30), (Sign(), 15), (Quantized(levels=1), 4), (LowRank(1), 10)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_error_stays_bounded_so_that_the_mean_of_what_is_said_is_the_gradient(
    compressor: Compressor, bound: float
) -> None:
    encoder = ErrorFeedback(compressor).encoder(LAYOUT)
    gradient = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(1))
    norms: list[float] = []
    for step in range(150):
        encoder.encode(gradient, Round(step))
        encoder.commit()
        assert encoder.error is not None
        norms.append((encoder.error.norm() / gradient.norm()).item())
    assert max(norms) < bound


def test_without_it_top_k_never_says_the_small_components() -> None:
    gradient = torch.linspace(1, 2, 130)
    for compressor, says_all in ((TopK(0.1), False), (ErrorFeedback(TopK(0.1)), True)):
        encoder, decoder = compressor.encoder(LAYOUT), compressor.decoder(LAYOUT)
        total, out = torch.zeros(130), torch.empty(130)
        for step in range(60):
            decoder.decode({0: encoder.encode(gradient, Round(step)).data.data}, out)
            encoder.commit()
            decoder.commit()
            total += out / 60
        assert (total > 0.5 * gradient).all() == says_all


@pytest.mark.parametrize("inner", [NoCompression(), ErrorFeedback(TopK()), Sign(vote=True)], ids=repr)
def test_what_leaves_nothing_out_or_keeps_errors_itself_is_refused(inner: Compressor) -> None:
    with pytest.raises(ExchangeInvalid):
        ErrorFeedback(inner)


def test_it_promises_what_the_other_promises() -> None:
    for inner in (Half(), LowRank(), TopK(), Censored()):
        outer = ErrorFeedback(inner)
        promises = [(c.summable, c.keeps_memory, c.stale_safe) for c in (inner, outer)]
        assert promises[0] == promises[1]


def test_errors_of_16_bit_gradients_are_kept_in_float32() -> None:
    layout = layout_of((4,), dtype=torch.bfloat16)
    encoder, decoder = ErrorFeedback(TopK(0.25)).encoder(layout), TopK(0.25).decoder(layout)
    small, total, out = torch.tensor([1.0, 1e-3, 1e-3, 1e-3]).bfloat16(), torch.zeros(4), torch.empty(4).bfloat16()
    for step in range(500):
        decoder.decode({0: encoder.encode(small, Round(step)).data.data}, out)
        encoder.commit()
        total += out.float()
    assert encoder.error is not None
    assert encoder.error.dtype == torch.float32
    # In bfloat16 a sum of 0.001 stops growing at 0.25.
    assert torch.allclose(total + encoder.error, 500 * small.float(), rtol=1e-3)
