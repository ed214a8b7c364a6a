"""Tuning of an exchange while it runs: `Autotune` gets measured steps and sets bucket size and compressor.

The factor `c` of GD-SEC trades bits for what is kept back, so faster alone is not better: only factors are allowed
under which the kept-back error is at most `ERROR_GROWTH` times that of the user's own factor.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import cast

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.autotune import AgreedAutotune, Autotune, Knob, bucket_size_knob, factor_knob
from ropewalk.exchange.bucketed import BucketedExchange
from ropewalk.exchange.buckets import FIRST_BUCKET_BYTES
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.exchange import Exchange
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.lanes import LanedExchange

ERROR_GROWTH = 3.0


class ExchangeTuner:
    """Tunes an exchange that is bound.

    Args:
        exchange: all-reduce or all-gather; its state is carried over by name.
        group: the group of the exchange; every member tunes.
        window: number of steps per measurement.
        clock: returns the time in seconds.

    Raises:
        ExchangeInvalid: the exchange has no buckets to tune.
    """

    def __init__(
        self, exchange: Exchange, group: Group, window: int = 10, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if not isinstance(exchange, BucketedExchange):
            raise ExchangeInvalid(f"{type(exchange).__name__} has no buckets to tune; AllReduce and AllGather have")
        self._exchange = exchange
        self._clock = clock
        self._last: float | None = None
        self._errors: list[float] = []
        self._most_error: float | None = None
        knobs = [bucket_size_knob(float(exchange.bucket_bytes))]
        if (factor := _factor(exchange)) is not None:
            knobs.append(factor)
        self._window = window
        self._agreed = AgreedAutotune(Autotune(knobs), group, window)
        self._values = {knob.name: knob.start for knob in knobs}

    @property
    def done(self) -> bool:
        """Whether nothing is left to try."""
        return self._agreed.done

    def after_step(self) -> None:
        """Record the step that has ended and, after a full window, apply new values; between two steps, everywhere."""
        now = self._clock()
        last, self._last = self._last, now
        if last is None or self.done:
            return
        new = self._agreed.after_step(now - last, allowed=self._keeps_back_little())
        if new is not None and dict(new) != self._values:
            self._apply(dict(new))
            self._last = self._clock()

    def _keeps_back_little(self) -> bool:
        exchange = self._exchange
        if "c" not in self._values or not isinstance(exchange, LanedExchange):
            return True
        self._errors.append(exchange.error_norm())
        if len(self._errors) == self._window and self._most_error is None:
            self._most_error = ERROR_GROWTH * statistics.median(self._errors)
        return self._most_error is None or self._errors[-1] <= self._most_error

    def _apply(self, values: dict[str, float]) -> None:
        exchange = self._exchange
        if values.get("c") != self._values.get("c") and isinstance(exchange, LanedExchange):
            exchange.set_compressor(dataclasses.replace(cast(GDSEC, exchange.compressor), c=values["c"]))
        if values["bucket_bytes"] != self._values["bucket_bytes"]:
            bucket_bytes = int(values["bucket_bytes"])
            exchange.set_bucket_bytes(bucket_bytes, min(bucket_bytes, FIRST_BUCKET_BYTES))
        self._values = values


def _factor(exchange: BucketedExchange) -> Knob | None:
    """Return the knob of GD-SEC's `c` in its averaged form, limited to values that its own guard accepts."""
    compressor = exchange.compressor if isinstance(exchange, LanedExchange) else None
    if not isinstance(compressor, GDSEC) or compressor.xi is not None:
        return None

    def is_stable(factor: float) -> bool:
        try:
            dataclasses.replace(compressor, c=factor, on_unstable="raise")
        except ExchangeInvalid:
            return False
        return True

    return factor_knob(compressor.c, is_stable)
