"""All records of a run as JSON, one in each line: a copy that any program can read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ropewalk.tracking.records import RunRecord
from ropewalk.tracking.sinks.appended_file import AppendedFile

_PUBLIC = {"numbers": "values"}
"""Fields that a line has by another name: `Metrics.numbers` may be bytes."""


class JsonLines(AppendedFile):
    """Appends lines such as {"run": "...", "record": "Metrics", "group": "", "names": ["loss"], "values": [0.5], ...}.

    NaN and infinities are null, because JSON has no words for them.

    Args:
        path: the file; None: records.jsonl in the folder of the run.
    """

    default_name: str = "records.jsonl"

    def encoded(self, batch: Sequence[RunRecord]) -> bytes:
        return b"".join(map(_line, batch))


def _line(one: RunRecord) -> bytes:
    names = [_PUBLIC.get(name, name) for name in one.record.__struct_fields__]
    fields = {name: getattr(one.record, name) for name in names}
    return msgspec.json.encode({"run": one.run, "record": type(one.record).__name__, **fields}) + b"\n"


__all__ = ["JsonLines"]
