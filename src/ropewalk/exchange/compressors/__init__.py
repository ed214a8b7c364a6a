"""Compressors by name, one file each.

Who brings another hands it over itself, or lists it with `register_compressor` or by an entry point of the group
`ropewalk.compressors`.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from difflib import get_close_matches
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

#: Every compressor by its name; the conformance suite runs over all of them.
COMPRESSORS: dict[str, type[Compressor]] = {
    kind.name: kind
    for kind in (NoCompression, Half, TopK, RandomK, Sign, Quantized, LowRank, Censored, GDSEC, ErrorFeedback)
}


def make_compressor(wanted: str | Compressor, **options: Any) -> Compressor:
    """Make a compressor from its name and options, or take an object that is one already.

        make_compressor("top_k", density=0.001)
        make_compressor("error_feedback", inner="sign")

    Raises:
        ExchangeInvalid: no compressor has this name, or it has no such option; says which there are.
    """
    if isinstance(wanted, Compressor):
        if options:
            raise ExchangeInvalid(f"{wanted!r} is configured already; it takes no {', '.join(options)}")
        return wanted
    kind = COMPRESSORS.get(wanted) or _installed(wanted)
    known = inspect.signature(kind).parameters
    if unknown := [option for option in options if option not in known]:
        near = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ExchangeInvalid(
            f"compressor {wanted!r} has no option {unknown[0]!r}; {hint}it has {', '.join(known) or 'none'}"
        )
    needed = [name for name, option in known.items() if option.default is option.empty and name not in options]
    if needed:
        raise ExchangeInvalid(f"compressor {wanted!r} needs the option {needed[0]!r}")
    if isinstance(options.get("inner"), str):
        options["inner"] = make_compressor(options["inner"])
    return kind(**options)


def _installed(wanted: str) -> type[Compressor]:
    others = {entry.name: entry for entry in importlib.metadata.entry_points(group="ropewalk.compressors")}
    if wanted not in others:
        known = [*COMPRESSORS, *sorted(others)]
        near = get_close_matches(wanted, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ExchangeInvalid(
            f"no compressor is called {wanted!r}; {hint}there are {', '.join(known)}; another is added with "
            f"register_compressor"
        )
    try:
        return others[wanted].load()
    except (ImportError, AttributeError) as error:
        raise ExchangeInvalid(
            f"{wanted!r} of ropewalk.compressors cannot be loaded from {others[wanted].value}: {error}"
        ) from error


def register_compressor(kind: type[Compressor]) -> type[Compressor]:
    """List a compressor under its `name`; usable as a decorator.

    Raises:
        ExchangeInvalid: another compressor has this name.
    """
    if COMPRESSORS.setdefault(kind.name, kind) is not kind:
        raise ExchangeInvalid(f"{kind.name!r} is the name of {COMPRESSORS[kind.name]!r}; give yours another name")
    return kind


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
