"""`make_exchange`: the exchange that a short word means."""

from __future__ import annotations

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.compressors import make_compressor
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.exchange import Exchange


def make_exchange(wanted: str | Compressor | Exchange) -> Exchange:
    """Take an exchange as it is; for a compressor, or its name, make the one that suits it.

    Payloads that can be summed go by all-reduce, the others by all-gather.

    Raises:
        ExchangeInvalid: it is neither, or no compressor has this name.
    """
    if isinstance(wanted, Exchange):
        return wanted
    if not isinstance(wanted, str | Compressor):
        raise ExchangeInvalid(
            f"{wanted!r} is no exchange, no compressor and no name of one; AllReduce() is the plainest"
        )
    compressor = make_compressor(wanted)
    return AllReduce(compressor) if compressor.summable else AllGather(compressor)
