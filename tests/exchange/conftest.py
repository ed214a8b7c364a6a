"""Tests of this folder whose programs run in processes share one session, forked from one that has imported torch.

So do ranks of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exchange.torch_members import TorchLeader
from tests.shared_session import one_session


@pytest.fixture(scope="package")
def shared_session() -> Iterator[None]:
    """See `tests/shared_session.py`; here for single tests, and until the last one of the folder."""
    yield from one_session("tests.exchange.preloaded")


@pytest.fixture(scope="package")
def torch_leader() -> Iterator[TorchLeader]:
    """From which the ranks of all modules are forked."""
    with TorchLeader("tests.exchange.ddp_cases") as leader:
        yield leader
