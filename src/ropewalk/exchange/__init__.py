"""Gradients between replicas: all-reduce, parameter servers, and compressors that send only what matters.

    attach(ddp_model, GDSEC(c=100, beta=0.01))                  any DistributedDataParallel model
    DistributedOptimizer(optimizer, AllReduce())                any optimizer, Horovod's shape
    data_parallel(train, workers=4, exchange=..., servers=2)    a `Program`: any engine, elastic

    gradients ─▶ buckets ─▶ compressor ─▶ all-reduce | all-gather | parameter server ─▶ decoder ─▶ mean ─▶ optimizer

Needs torch; numba makes finding what matters several times faster (`pip install 'ropewalk[exchange]'`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.exchange.compressors.compressor import Compressor
    from ropewalk.exchange.exchange import Exchange, Report, StepRecord
    from ropewalk.exchange.groups.group import Group

_HOMES: dict[str, str] = {
    "Exchange": "exchange",
    "Report": "exchange",
    "StepRecord": "exchange",
    "Group": "groups.group",
    "Compressor": "compressors.compressor",
}

__all__ = ["Compressor", "Exchange", "Group", "Report", "StepRecord"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        install = "pip install 'ropewalk[exchange]'"
        raise ModuleNotFoundError(f"ropewalk.exchange.{name} needs {error.name}: {install}", name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
