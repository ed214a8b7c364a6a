"""What was learnt becomes a module again, also when the launcher never had its numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ropewalk.pipeline.tracing.filling import filled
from tests.pipeline.models import Transformer


def test_a_model_on_meta_is_filled_and_keeps_its_ties() -> None:
    model = nn.ModuleList([Transformer(8, 9, 4, 1, 0.0, True), nn.LSTM(3, 4), nn.BatchNorm1d(3)]).eval()
    on_meta = copy.deepcopy(
        model,
        {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters()},
    )
    tensors = {name: torch.randn_like(one) for name, one in model.named_parameters()}
    tensors["2.running_mean"] = torch.randn(3)
    found, wanted = filled(on_meta, tensors), filled(model, tensors)
    for one, other in zip(found.state_dict().items(), wanted.state_dict().items(), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])
    assert torch.equal(dict(found.named_parameters())["0.norm.weight"], tensors["0.norm.weight"])
    assert found[0].head.weight is found[0].embedding.weight  # type: ignore[index]
    assert all(one.is_meta for one in on_meta.parameters()), "left as it was"
    sequence = torch.randn(2, 1, 3)
    assert torch.equal(found[1](sequence)[0], wanted[1](sequence)[0])  # type: ignore[index]
    with pytest.raises(ValueError, match=r"no numbers for '1.weight_ih_l0' and 3 others"):
        filled(on_meta, {name: one for name, one in tensors.items() if not name.startswith("1.")})
