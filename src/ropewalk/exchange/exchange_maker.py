"""`make_exchange`: makes an exchange from a name, a compressor or an exchange."""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.compressors import make_compressor
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.exchange import Exchange

MakesExchange = Callable[[], Exchange | Compressor] | Compressor | str
"""A user's setting: a function that makes an exchange, or a compressor or its name, which has an exchange."""


def check_setting(setting: object, whose: str) -> None:
    """Check a user's setting as far as that is possible without making an exchange.

    Args:
        setting: what the user has given.
        whose: of what each makes an exchange of its own: "worker" or "replica".

    Raises:
        ExchangeInvalid: it is no such setting, or no compressor has this name.
    """
    if isinstance(setting, Exchange):
        kind = type(setting).__name__
        raise ExchangeInvalid(
            f"every {whose} makes an exchange of its own, so give a function that does, such as "
            f"functools.partial({kind}, ...), and no {kind} that is made already"
        )
    if isinstance(setting, str):
        make_compressor(setting)  # an unknown name is reported here, and not by each of them
    elif not (isinstance(setting, Compressor) or callable(setting)):
        raise ExchangeInvalid(
            f"exchange= is a compressor such as GDSEC(c=100), its name, or a function that makes an exchange; not "
            f"{setting!r}"
        )


def made_exchange(setting: MakesExchange) -> Exchange:
    """Return a new exchange by a user's setting; raises as `make_exchange`."""
    return make_exchange(setting() if callable(setting) else setting)


def make_exchange(wanted: str | Compressor | Exchange) -> Exchange:
    """Return an exchange as it is; for a compressor or its name, make the exchange that suits it.

    Payloads that can be summed travel by all-reduce, the others by all-gather.

    Args:
        wanted: an exchange, a compressor, or the name of a compressor such as "gd_sec".

    Returns:
        The exchange, not yet bound.

    Raises:
        ExchangeInvalid: `wanted` is none of these, or no compressor has this name.
    """
    if isinstance(wanted, Exchange):
        return wanted
    if not isinstance(wanted, str | Compressor):
        raise ExchangeInvalid(
            f"{wanted!r} is neither an exchange, nor a compressor, nor the name of one; AllReduce() is the plainest"
        )
    compressor = make_compressor(wanted)
    return AllReduce(compressor) if compressor.summable else AllGather(compressor)
