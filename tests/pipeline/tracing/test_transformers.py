"""Models of the package transformers, which most people train, compute the same wherever they are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ropewalk.pipeline.tracing import trace
from tests.pipeline.tracing.cutting import random_stages, run_cut, run_itself

pytestmark = pytest.mark.lab

WORDS = 50
SIZES: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 4}


def _gpt2(library: Any) -> nn.Module:
    config = library.GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    return library.GPT2LMHeadModel(config)


def _llama(library: Any) -> nn.Module:
    return library.LlamaForCausalLM(library.LlamaConfig(**SIZES, **HEADS, num_key_value_heads=2))


def _qwen(library: Any) -> nn.Module:
    return library.Qwen2ForCausalLM(library.Qwen2Config(**SIZES, **HEADS, num_key_value_heads=2))


def _bert(library: Any) -> nn.Module:
    return library.BertForSequenceClassification(library.BertConfig(**SIZES, **HEADS))


def _t5(library: Any) -> nn.Module:
    config = library.T5Config(vocab_size=WORDS, d_model=32, d_ff=64, num_layers=2, num_heads=4, d_kv=8)
    return library.T5ForConditionalGeneration(config)


def _vit(library: Any) -> nn.Module:
    return library.ViTForImageClassification(library.ViTConfig(image_size=32, patch_size=8, **SIZES, **HEADS))


def _words(batch: int) -> dict[str, Any]:
    words = torch.randint(WORDS, (batch, 12))
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


def _pairs(batch: int) -> dict[str, Any]:
    return {**_words(batch), "decoder_input_ids": torch.randint(WORDS, (batch, 9)), "use_cache": False}


def _images(batch: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


MODELS: dict[str, tuple[Callable[[Any], nn.Module], Callable[[int], dict[str, Any]]]] = {
    "gpt2": (_gpt2, _words),
    "llama": (_llama, _words),
    "qwen2": (_qwen, _words),
    "bert": (_bert, _words),
    "t5": (_t5, _pairs),
    "vit": (_vit, _images),
}


@pytest.mark.filterwarnings("ignore")  # of the library, on its own future
@pytest.mark.parametrize("name", MODELS)
def test_a_cut_model_computes_what_it_computes_whole(name: str) -> None:
    import transformers

    make, inputs = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make(transformers)
        model.train()
        model.config.use_cache = False  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        graph = trace(model, inputs(8))
        given = inputs(5)
        stages = random_stages(graph, 3, seed=1)
        expected, found = run_itself(model, (), given, 2), run_cut(graph, stages, (), given, 2)
    assert torch.equal(expected.generator, found.generator)
    for one, other in zip(expected.outputs, found.outputs, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    # The readers of one value may be in several stages, which changes the order in which their gradients are added.
    assert expected.gradients.keys() == found.gradients.keys()
    for tensor, gradient in expected.gradients.items():
        assert (gradient is None) == (found.gradients[tensor] is None)
        torch.testing.assert_close(found.gradients[tensor], gradient, rtol=1e-4, atol=1e-6)
