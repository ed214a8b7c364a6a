"""State from another member is read without running any code."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk
from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.packed_state import pack, unpack


class Bomb:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._folder,)


def test_the_state_of_a_model_an_optimizer_and_a_schedule_comes_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=9)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    state: dict[str, Any] = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "carry": [schedule.state_dict()],
        "random": torch.get_rng_state(),
    }
    again = unpack(pack(state))
    assert isinstance(again["model"], OrderedDict) and again["carry"] == state["carry"]
    torch.testing.assert_close(again["model"], state["model"], rtol=0, atol=0)
    torch.testing.assert_close(again["optimizer"]["state"], state["optimizer"]["state"], rtol=0, atol=0)
    assert torch.equal(again["random"], state["random"])


def test_code_in_the_state_of_another_member_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for evil in (Bomb(mark), {"model": Bomb(mark)}, {"carry": [{"step": Bomb(mark)}]}):
        with pytest.raises(ExchangeInvalid, match=r"more than tensors.*carry="):
            unpack(pack(evil))
    assert not mark.exists()
    torch.load(io.BytesIO(pack(Bomb(mark))), weights_only=False)
    assert mark.exists(), "the bomb is none"


def test_damaged_state_is_refused_wherever_the_damage_is() -> None:
    whole = pack({"a": torch.arange(5.0), "b": "text"})
    for size in range(0, len(whole), 37):
        with pytest.raises(ExchangeInvalid, match=f"state of {size:,} bytes from another member is refused"):
            unpack(whole[:size])


def test_nothing_else_reads_what_torch_has_written() -> None:
    sources = Path(ropewalk.__file__).parent
    readers = [file.name for file in sources.rglob("*.py") if "= torch.load(" in (text := file.read_text())
               or "return torch.load(" in text or "weights_only=False" in text]  # fmt: skip
    assert readers == ["packed_state.py"]
