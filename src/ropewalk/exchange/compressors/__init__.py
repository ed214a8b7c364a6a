"""Compressors by name, one file each.

A compressor of your own can be passed as an object, registered with `register_compressor`, or added by an entry point
of the group `ropewalk.compressors`.
"""

from __future__ import annotations

from typing import Any

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.compressors.censored import Censored
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Encoder, Round, SummableEncoder
from ropewalk.exchange.compressors.error_feedback import ErrorFeedback
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.compressors.half import Half
from ropewalk.exchange.compressors.low_rank import LowRank
from ropewalk.exchange.compressors.none import NoCompression
from ropewalk.exchange.compressors.quantized import Quantized
from ropewalk.exchange.compressors.random_k import RandomK
from ropewalk.exchange.compressors.sign import Sign
from ropewalk.exchange.compressors.top_k import TopK
from ropewalk.families import Family

COMPRESSORS: Family[type[Compressor]] = Family(
    "compressor",
    {
        kind.name: kind
        for kind in (NoCompression, Half, TopK, RandomK, Sign, Quantized, LowRank, Censored, GDSEC, ErrorFeedback)
    },
    group="ropewalk.compressors",
    unknown=ExchangeInvalid,
    added_by="register_compressor",
)
"""All compressors by name; the conformance suite runs over all of them."""


def make_compressor(wanted: str | Compressor, **options: Any) -> Compressor:
    """Make a compressor from its name and options, or return an object that is a compressor already.

    Example:
        >>> from ropewalk.exchange import make_compressor
        >>> make_compressor("top_k", density=0.001)
        TopK(density=0.001, values='same')
        >>> make_compressor("error_feedback", inner="sign")
        ErrorFeedback(inner=Sign(vote=False))

    Args:
        wanted: the name of a compressor, or a compressor.
        options: arguments of the compressor's class, allowed with a name only.

    Returns:
        The compressor.

    Raises:
        ExchangeInvalid: no compressor has this name, or it has no such option; the message lists the possible ones.
    """
    if isinstance(options.get("inner"), str):
        options["inner"] = make_compressor(options["inner"])
    return COMPRESSORS.of(wanted, options, Compressor)


def register_compressor(name: str, kind: type[Compressor]) -> None:
    """Register a compressor class under its `name`, for exchanges that are given a name.

    Args:
        name: the name.
        kind: the class.

    Raises:
        ExchangeInvalid: the name is taken, or the class has another one.
    """
    COMPRESSORS.add(name, kind)


__all__ = [
    "COMPRESSORS",
    "GDSEC",
    "Censored",
    "Compressor",
    "Decoder",
    "Encoder",
    "ErrorFeedback",
    "Half",
    "LowRank",
    "NoCompression",
    "Quantized",
    "RandomK",
    "Round",
    "Sign",
    "SummableEncoder",
    "TopK",
    "make_compressor",
    "register_compressor",
]
