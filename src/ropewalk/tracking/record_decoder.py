"""Decodes the records that a process has written, with one list of names for all metrics that have the same names.

A training logs the same names at each step. Decoding a hundred of them takes longer than decoding their values, and the
store finds the records of one list by its identity (`metric_rows.transposed`). So the bytes of the names are compared
with those of earlier records, and are decoded when they are new.
"""

from __future__ import annotations

import msgspec

from ropewalk.tracking.records import Metrics, OtherRecord, Record

_MOST_LISTS = 256
_MOST_BYTES = 64 * 1024
"""Of the names of one record; longer ones are decoded each time."""


class _MetricsAsSent(msgspec.Struct, tag=4, array_like=True, frozen=True, gc=False):
    """`Metrics` whose names are not decoded."""

    group: str
    names: msgspec.Raw
    numbers: list[float] | bytes
    step: float
    time: float


_decode = msgspec.msgpack.Decoder(tuple[str, OtherRecord | _MetricsAsSent]).decode
_decode_names = msgspec.msgpack.Decoder(list[str]).decode


class RecordDecoder:
    """Decodes records; belongs to one thread."""

    def __init__(self) -> None:
        self._names: dict[bytes, list[str]] = {}

    def decode(self, data: bytes) -> tuple[str, Record]:
        """Return a run and a record of it.

        Args:
            data: as `PipeSink` encodes it.

        Raises:
            msgspec.DecodeError: it is no record.
        """
        run, record = _decode(data)
        if isinstance(record, _MetricsAsSent):
            names = self._names_of(bytes(record.names))
            record = Metrics(record.group, names, record.numbers, record.step, record.time)
        return run, record

    def _names_of(self, encoded: bytes) -> list[str]:
        names = self._names.get(encoded)
        if names is None:
            names = _decode_names(encoded)
            if len(encoded) <= _MOST_BYTES:
                if len(self._names) >= _MOST_LISTS:  # names that change all the time gain nothing by being kept
                    self._names.clear()
                self._names[encoded] = names
        return names


__all__ = ["RecordDecoder"]
